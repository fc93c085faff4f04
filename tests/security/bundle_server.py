"""A real server in a process of its own, to be killed: the API on a socket, SQLite, and the process engine.

    python -m tests.security.bundle_server FOLDER

FOLDER keeps everything; `FOLDER/port` says where it listens.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvicorn
from tests.fakes.waiting import until
from tests.integration.api_world import serving

from commonage.engines.process.engine import ProcessEngine
from commonage.engines.settings import ProcessSettings
from commonage.store.sql_store import SqlStore
from commonage.store.upgrade import upgrade


async def main(folder: Path) -> None:
    url = f"sqlite:///{folder}/commonage.db"
    await upgrade(url)
    settings = ProcessSettings(node_name="here", cgroups=False, warm_sessions=False)

    def engine() -> ProcessEngine:
        return ProcessEngine("local", folder / "data", settings=settings)

    async with serving(folder, SqlStore(url), engine=engine) as api:
        server = uvicorn.Server(
            uvicorn.Config(api.app, port=0, access_log=False, log_level="warning", lifespan="off", ws="none")
        )
        running = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        new = folder / "port.new"
        new.write_text(str(server.servers[0].sockets[0].getsockname()[1]))
        new.rename(folder / "port")
        await running


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
