import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { before, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { hadNoEffect, openPython, type Python } from '../../backends/environments/kit.ts';
import { eventually } from '../eventually.ts';
import { canSandbox, missingSandbox } from './sandbox-here.ts';

const skip = (await canSandbox()) ? false : missingSandbox;

describe('model-written Python in its sandbox', { skip }, () => {
  let python: Python;
  before(async () => {
    python = await openPython({ timeoutS: 1, outputCharsMax: 300 });
  });
  const run = (...cells: string[]) => python.run(cells);

  test('gives what was printed, the value of a last expression, and errors with their line', async () => {
    assert.equal(await run('print("a")\n6 * 7'), 'a\n42');
    assert.equal(await run('x = 1'), '(no output)');
    assert.equal(
      await run('x = 1\n1 / 0'),
      'Traceback (most recent call last):\n  File "<cell>", line 2, in <module>\nZeroDivisionError: division by zero',
    );
    assert.match(await run('print('), /SyntaxError/);
  });

  test('what earlier calls defined is there, also of one that failed half-way; what they printed is not said again', async () => {
    assert.equal(await run('import math\nprint("first")', 'x = math.factorial(5)\nraise ValueError', 'x'), '120');
    assert.equal(await run('open("f", "w").write("kept")', 'open("f").read()'), "'kept'");
  });

  test('the same calls give the same, random numbers and sets included', async () => {
    const code = 'import random\n(random.random(), list({"a", "b", "c", "d"}))';
    assert.equal(await run(code), await run(code));
  });

  test('an endless loop is stopped in time, also one that catches everything', async () => {
    const stubborn = 'while True:\n  try:\n    while True: pass\n  except BaseException: pass';
    for (const code of ['while True: pass', 'import time\ntime.sleep(1000)', stubborn]) {
      const answer = await run(code);
      assert.match(answer, /^Error: the code ran longer than 1 s and was stopped\.$/);
      assert.ok(hadNoEffect(answer));
    }
  });

  test('a long output is cut, an endless one is stopped', async () => {
    assert.equal(
      await run('print("x" * 1000)'),
      `${'x'.repeat(150)}\n… (700 characters left out) …\n${'x'.repeat(150)}`,
    );
    assert.match(await run('while True: print("x" * 100_000)'), /x\nError: the code (printed|ran)/);
  });

  test('memory, files and processes have an end', async () => {
    assert.match(await run('x = bytearray(2_000_000_000)'), /MemoryError/);
    assert.match(await run('with open("big", "wb") as f:\n  for _ in range(200): f.write(bytes(1_000_000))'), /Error/);
    assert.match(await run('import os\nos.fork()'), /PermissionError/);
    assert.match(await run('import subprocess\nsubprocess.run(["true"])'), /PermissionError/);
    const bomb =
      'import os\nmade = 0\nfor _ in range(50):\n  try:\n    if os.fork() == 0: os._exit(0)\n    made += 1\n  except OSError: pass\nmade';
    assert.equal(await run(bomb), '0');
    assert.equal(
      await run('import threading\nt = threading.Thread(target=lambda: print("here"))\nt.start(); t.join()'),
      'here',
    );
  });

  test('code that wants to outlive its time ends with its call all the same', async () => {
    const mark = `escape_${process.pid}`.slice(-15);
    const escape = `import ctypes, os, signal, time
libc = ctypes.CDLL(None)
libc.prctl(15, b"${mark}", 0, 0, 0)
said = [libc.prctl(1, 0, 0, 0, 0), libc.setsid(), libc.setpgid(0, 0)]
signal.setitimer(signal.ITIMER_REAL, 0)
print(said, flush=True)
while True: time.sleep(1)`;
    const answer = await run(escape);
    assert.match(answer, /^\[-1, -1, -1\]\nError: the code ran longer than 1 s/);
    // The kernel ends a namespace's processes in its own time.
    await eventually(
      'the end of the code',
      async () => isThere(mark),
      (is) => !is,
    );
  });

  test('the marks by which its time is counted cannot be made by the code', async () => {
    const writes = 'import os, signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: os.write(3, b"s")';
    const started = performance.now();
    assert.match(await run(writes, '1'), /ended while it ran the calls before/);
    assert.ok(performance.now() - started < 30_000);
  });

  test('memory that is not of its address space cannot be had', async () => {
    const shared = 'libc.shmget(0, 200_000_000, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)';
    const calls = `import ctypes\nlibc = ctypes.CDLL(None)\n(${shared}, libc.memfd_create(b"x", 0))`;
    assert.equal(await run(calls), '(-1, -1, -1, -1)');
  });

  // Root that may not mount cannot become another user in a root of files of its own.
  const isBareRoot = process.getuid?.() === 0 && (capabilities() & (1n << 21n)) === 0n;
  test('threads have an end, also where root runs this', { skip: isBareRoot && 'no CAP_SYS_ADMIN' }, async () => {
    const threads = `import threading
threading.stack_size(32768)
stop = threading.Event()
made = 0
try:
  for made in range(1000): threading.Thread(target=stop.wait, daemon=True).start()
except RuntimeError: pass
print(made < 100)`;
    const patient = await openPython({ timeoutS: 60 }); // a busy machine begins threads slowly
    assert.equal(await patient.run([threads]), 'True');
  });

  test('there are sockets of this namespace alone', async () => {
    const open = (family: string) => run(`import socket\nsocket.socket(${family}, socket.SOCK_STREAM).fileno() >= 0`);
    for (const family of ['40', 'socket.AF_NETLINK', 'socket.AF_PACKET', '38']) {
      assert.match(await open(family), /PermissionError/, family);
    }
    assert.equal(await open('socket.AF_UNIX'), 'True');
    assert.equal(await run('import asyncio\nasyncio.run(asyncio.sleep(0, 7))'), '7');
  });

  test('sockets and pipes hold little, because no memory limit counts them', async () => {
    const filled = `import socket, os, fcntl
held = refused = 0
def fill(write):
  global held
  for size in (65536, 4096, 1):
    try:
      while True: held += write(b"x" * size)
    except OSError: pass
pairs = []
try:
  while True: pairs.append(socket.socketpair())
except OSError: pass
for one in [each for pair in pairs for each in pair]:
  for option in (7, 8, 32, 33):
    try: one.setsockopt(socket.SOL_SOCKET, option, 1 << 30)
    except PermissionError: refused += 1
  one.setblocking(False)
  fill(one.send)
print(refused == 8 * len(pairs), held < 40_000_000, held > 100_000)`;
    assert.equal(await run(filled), 'True True True');
    const pipes =
      filled.replace(/pairs = \[\][^]*/, '') +
      `
try:
  while True:
    r, w = os.pipe()
    try: fcntl.fcntl(w, 1031, 1 << 20)
    except PermissionError: refused += 1
    os.set_blocking(w, False)
    fill(lambda part: os.write(w, part))
except OSError: pass
print(refused > 10, held < 5_000_000)`;
    assert.equal(await run(pipes), 'True True');
    // Sockets in transit inside another socket belong to no process's open files.
    const sent = 'import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b"x"], [b.fileno()])';
    assert.match(await run(sent), /PermissionError/);
  });

  test('an interpreter that is killed is told, and does not count as run', async () => {
    const answer = await run('import os\nos._exit(0)');
    assert.equal(answer, 'Error: the interpreter ended (exit code 0).');
    assert.ok(hadNoEffect(answer));
  });

  test('nothing on this machine can be reached over the network', async () => {
    const server = createServer((socket) => socket.end('hello')).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const { port } = server.address() as AddressInfo;
    try {
      const answer = await run(`import socket\nsocket.create_connection(("127.0.0.1", ${port}), 0.5)`);
      assert.match(answer, /OSError|ConnectionRefused|TimeoutError/);
    } finally {
      server.close();
    }
  });

  test('neither our environment nor our files are there, and nothing outside its folder can be written', async () => {
    process.env['RATCHET_CANARY_KEY'] = 'canary-7f3a';
    const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-sandbox-'));
    const file = path.join(folder, 'ours');
    writeFileSync(file, 'canary-7f3a');
    try {
      assert.doesNotMatch(await run('import os\ndict(os.environ)'), /canary|RATCHET/);
      assert.match(await run(`open(${JSON.stringify(file)}).read()`), /FileNotFoundError/);
      assert.match(await run(`open(${JSON.stringify(file)}, "w")`), /Error/);
      for (const place of ['/usr/x', '/x', '/lib/x']) {
        assert.match(await run(`open("${place}", "w")`), /Read-only file system|No such file|Permission/);
      }
      assert.equal(readFileSync(file, 'utf8'), 'canary-7f3a');
      assert.equal(await run('import os\nsorted(os.listdir("."))'), '[]');
      assert.match(await run('import os\nos.listdir("/proc")'), /FileNotFoundError/);
    } finally {
      rmSync(folder, { recursive: true });
      delete process.env['RATCHET_CANARY_KEY'];
    }
  });

  test('the sandbox cannot be taken down from inside', async () => {
    const mount =
      'import ctypes\nlibc = ctypes.CDLL(None)\n(libc.mount(b"none", b"/work", b"tmpfs", 0, None), libc.unshare(0x10000000))';
    assert.equal(await run(mount), '(-1, -1)');
    assert.equal(await run('import os\nos.kill(1, 9)\n"alive"'), "'alive'");
    assert.match(await run('import os\nos.setuid(1000)'), /Error/);
  });

  test('what runs ends with the process that started it, also when that is killed', async () => {
    const kit = fileURLToPath(new URL('../../backends/environments/kit.ts', import.meta.url));
    const mark = `mark_${process.pid}_${Date.now()}`;
    const program = `import { openPython } from ${JSON.stringify(kit)};
      const python = await openPython({ timeoutS: 300 });
      console.log('running');
      await python.run(['import ctypes, time\\nctypes.CDLL(None).prctl(15, b"${mark.slice(-15)}", 0, 0, 0)\\ntime.sleep(300)']);`;
    const child = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', program], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    while (!isThere(mark.slice(-15))) {
      assert.equal(child.exitCode, null);
      await delay(50);
    }
    child.kill('SIGKILL');
    while (isThere(mark.slice(-15))) await delay(50);
  });
});

function capabilities(): bigint {
  const status = existsSync('/proc/self/status') ? readFileSync('/proc/self/status', 'utf8') : '';
  return BigInt(`0x${/^CapEff:\s*([0-9a-f]{1,16})$/m.exec(status)?.[1] ?? '0'}`);
}

/** Whether a process is called so. */
function isThere(name: string): boolean {
  return readdirSync('/proc').some((pid) => {
    const file = `/proc/${pid}/comm`;
    try {
      return /^\d+$/.test(pid) && existsSync(file) && readFileSync(file, 'utf8').trim() === name;
    } catch {
      return false; // it has just ended
    }
  });
}

test('where there is no sandbox, loading refuses and says what is missing and what to do', async () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'ratchet-no-sandbox-'));
  // A Python that answers as one does, and is no sandbox.
  const broken = path.join(folder, 'python3');
  writeFileSync(
    broken,
    `#!/bin/sh\nif [ "$1" = -c ]; then echo "${broken}"; else echo "mount /sys: not permitted" >&2; exit 1; fi\n`,
    {
      mode: 0o755,
    },
  );
  try {
    await assert.rejects(openPython({ python: broken }), (error: Error) => {
      assert.match(error.message, /sandbox only, and there is none here: expected Linux/);
      assert.match(error.message, /sandbox = "none"/);
      return true;
    });
    await assert.rejects(openPython({ python: 'no-such-python' }), /cannot be started. Install python3/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('without a sandbox, when that is asked for, time and memory are limited all the same', async (t) => {
  try {
    execFileSync('python3', ['-c', '']);
  } catch {
    t.skip('no python3 here');
    return;
  }
  const python = await openPython({ sandbox: 'none', timeoutS: 1 });
  assert.equal(await python.run(['x = 41', 'x + 1']), '42');
  assert.match(await python.run(['while True: pass']), /ran longer than 1 s/);
  // A process left behind holds its pipe, in a group of its own; the next call does not wait for it.
  const leaves = 'import subprocess\nsubprocess.Popen(["sleep", "30"], start_new_session=True).pid';
  const left = Number(await python.run([leaves]));
  process.kill(left, 'SIGKILL');
  process.env['RATCHET_CANARY_KEY'] = 'canary-7f3a';
  assert.doesNotMatch(await python.run(['import os\ndict(os.environ)']), /canary/);
  delete process.env['RATCHET_CANARY_KEY'];
});
