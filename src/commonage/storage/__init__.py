"""Disk usage of homes and volumes on this machine, and limits on it where the file system has project quotas."""
