"""The keeper: a small process beside the server that ends it once its last user has gone.

Run as a script, isolated and without site packages (3.6 MB of own memory), so this file must import nothing but
small parts of the standard library, and nothing of the project. Its arguments:

    FOLDER KEEPER_FD start SERVER_FD COMMAND...   start the server and watch it
    FOLDER KEEPER_FD adopt PID                    watch a server whose keeper was killed

It waits twice, both times in the kernel: one thread for the users' lock, the main thread for the server's.
"""

import _thread
import fcntl
import os
import signal
import sys


def main(arguments: list[str]) -> None:
    """Detach, then live exactly as long as the server."""
    folder, keeper_fd, task, *rest = arguments
    if os.fork():
        return  # the launcher reaps this half; the other belongs to nobody and can't become its zombie
    os.chdir(folder)
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a mask taken over from a user's thread would make the server deaf
    os.set_inheritable(int(keeper_fd), False)
    pid = _start(int(rest[0]), rest[1:]) if task == "start" else int(rest[0])
    # Opened anew: the inherited descriptor shares the server's hold on the lock, this one waits for it.
    server = os.open("server.lock", os.O_RDWR)
    users = os.open("users.lock", os.O_RDWR)
    _thread.start_new_thread(_end_after_users, (users, pid))
    fcntl.flock(server, fcntl.LOCK_SH)  # granted when the server has ended, however it ended
    if task == "start":
        os.waitpid(pid, 0)  # in a container nobody else may reap it
    os._exit(0)


def _start(server_fd: int, command: list[str]) -> int:
    """Start the server as a child, holding the lock `server_fd` for its whole life; returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(command[0], command)  # noqa: S606 - no shell wanted
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())  # ends up in the server's log
        finally:
            os._exit(127)
    os.close(server_fd)
    return pid


def _end_after_users(users: int, pid: int) -> None:
    """Ask the server to end as soon as nobody uses it, and keep newcomers waiting until it has."""
    fcntl.flock(users, fcntl.LOCK_EX)
    # Not a stranger's pid: the server still holds its lock, or the main thread would have ended this process.
    os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
