import os

DEFAULT_ENV_PATH = os.path.expanduser("~/.visdom/")
