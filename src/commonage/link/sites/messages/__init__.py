"""The messages of a site link, by subject; `hello` is the first on each link."""
