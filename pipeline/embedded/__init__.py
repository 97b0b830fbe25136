"""The embedded server: Valkey for people who have no Redis yet, shared by all their commands on one machine.

Three locks in the state folder say everything, because the kernel drops a lock with its last holder, kill -9
included. No count, no pid file and no heartbeat can go stale.

* users.lock   shared by every user; the keeper waits to have it alone, then ends the server and lets go
* server.lock  held by the server process itself, inherited at its start: one server a folder, never two
* keeper.lock  held by the keeper, and before that by whoever is starting one: one starter at a time

A process that wants the server takes its share of users.lock first. From then on the server can't be ended for want
of users, and whoever finds keeper.lock free mends what is missing: the server and its keeper, or only the keeper.
The locks need a local file system.

The loopback port has no password: every account of the machine can reach it. The socket is its owner's alone.
"""

from pipeline.embedded.binary import find_server
from pipeline.embedded.errors import EmbeddedError
from pipeline.embedded.folder import default_state_dir, state_dir_from_url
from pipeline.embedded.launcher import EmbeddedServer, ensure

__all__ = ["EmbeddedError", "EmbeddedServer", "default_state_dir", "ensure", "find_server", "state_dir_from_url"]
