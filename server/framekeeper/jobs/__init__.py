"""Every state change of a job."""
