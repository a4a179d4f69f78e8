"""The version of gputui, in a module that imports nothing: what every layer writes into its files
must not reach up to the package's face, whose names come from the library."""

VERSION = "0.1.0"
