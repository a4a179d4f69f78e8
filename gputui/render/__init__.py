"""Reports as files and text: families of formats in `formats/`, and what writes them."""
