"""Imported in a child: it waits for a driver's answers however slow the machine is."""

from gputui.collect import machine_reader
from gputui.collect.nvml import gpus

PATIENCE_S = 60.0

machine_reader.FIRST_STATUS_S = machine_reader.ENERGY_S = PATIENCE_S
gpus.SETTLE_TIMEOUT_S = PATIENCE_S
gpus.Nvml.__init__.__kwdefaults__.update(open_timeout_s=PATIENCE_S, poll_timeout_s=PATIENCE_S)
