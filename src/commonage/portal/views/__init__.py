"""The pages of the portal: one module for each page, with its form and its live stream."""
