"""The verbs that run on the server's own machine. The command line's table (`commonage.cli.app`) names them."""
