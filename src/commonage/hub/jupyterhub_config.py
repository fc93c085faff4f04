"""Loaded by JupyterHub itself. The rules are in `commonage.hub.config`; an installation's own file is loaded last."""

import os
import secrets
import sys
from pathlib import Path

from commonage import tracing
from commonage.hub import sign_in_limit
from commonage.hub.config import configure
from commonage.wire.hub import HubSettings

settings = HubSettings.model_validate_json(Path(os.environ["COMMONAGE_HUB_SETTINGS"]).read_bytes())
proxy_key = secrets.token_urlsafe(32)
# traitlets puts get_config and load_subconfig here
configure(get_config(), settings, proxy_key)  # type: ignore[name-defined]  # noqa: F821
sign_in_limit.install(settings.max_failed_sign_ins_per_minute, proxy_key, settings.trusted_proxies)
if settings.tracing_endpoint is not None:
    tracing.configure(settings.tracing_endpoint, "hub", settings.tracing_share)
if settings.extra_config is not None:
    # JupyterHub itself ignores a file that is missing.
    if not os.access(settings.extra_config, os.R_OK):
        sys.exit(
            f"hub_config: the hub cannot read {settings.extra_config}. Correct the path in commonage.toml. Where the "
            f"hub runs in a container of its own, put the file into {settings.secrets_dir}."
        )
    load_subconfig(settings.extra_config, path="")  # type: ignore[name-defined]  # noqa: F821
