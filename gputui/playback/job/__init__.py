"""A folder of recordings of one job, of each node or each rank, as one session."""

from __future__ import annotations

from gputui.playback.job.members import members_of
from gputui.playback.job.recording import FollowedJob, JobRecording, open_job

__all__ = ["FollowedJob", "JobRecording", "members_of", "open_job"]
