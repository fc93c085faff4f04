"""The routes of the REST API: a module for each noun, with its routes and the filling of its messages."""
