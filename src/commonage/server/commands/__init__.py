"""Commands that run on the server's machine. The table of the command line (`commonage.cli.app`) names them."""
