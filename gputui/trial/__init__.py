"""Trials: the cures that answer a program's findings, applied to the unmodified program from
outside, and what each brings.

`planning` chooses them, `runs` starts the program with them, `blocks` is what it says of its steps,
`proof` what that proves, `sameness` whether results stayed the same, `measured` what is known of
each cure so far, and `outcome` the answer. `trials` does all of it in turn. What runs in the
program is in gputui/cures and gputui/inject/hook/trial.py.
"""
