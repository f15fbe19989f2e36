"""Notes what a process does that a server must not, by Python's own audit hook.

Imported by every Python process that has this folder on its path. A line an event goes to the file
that AUDIT_LOG names: the event, the file and the function that it comes from, and what it is about.
"""

import os
import sys

_LOG = os.open(os.environ["AUDIT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_CONNECTS = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
_STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn"}
_CODE = {"exec", "compile", "pickle.find_class", "marshal.loads", "ctypes.dlopen"}
_FILES = {"os.remove", "os.rename", "os.mkdir", "os.symlink", "os.chmod", "shutil.rmtree"}
_WATCHED = _CONNECTS | _STARTS | _CODE | _FILES
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _hook(event, arguments):
    if event == "open":
        if not isinstance(arguments[2], int) or not arguments[2] & _WRITES:
            return
    elif event not in _WATCHED:
        return
    try:
        code = sys._getframe(1).f_code
    except ValueError:  # the interpreter itself, at the start of the process
        return
    about = arguments[1] if event == "socket.connect" else arguments[0] if arguments else ""
    line = (event, code.co_filename, code.co_name, str(about)[:200])
    os.write(_LOG, ("\t".join(line).replace("\n", " ") + "\n").encode(errors="replace"))


sys.addaudithook(_hook)
