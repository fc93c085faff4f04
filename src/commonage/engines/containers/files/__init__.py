"""What a container finds on disk: workspace, job folder, control folder, log, volumes."""
