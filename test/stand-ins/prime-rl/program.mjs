/**
 * What is to Ratchet a Python with prime-rl: it says what the installation is, and is torchrun for ranks of ours. As with torchrun, ranks have sessions of
 * their own, and outlive a launcher that is killed; one that fails takes the others along. Arguments: the command of a rank, then a Python's.
 */
import { spawn } from 'node:child_process';
import { connect, createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { installation, older } from './installation.mjs';

const [separator, ...rest] = [process.argv.indexOf('--'), ...process.argv.slice(2)];
const rankCommand = rest.slice(0, separator - 2);
const [, module, ...args] = process.argv.slice(separator + 1);

const lookMs = 50;
/** A launcher whose ranks are done may see the end of another one before its own ranks have ended. */
const graceMs = 500;
/** @type {(code: number) => void} */
let end = (code) => process.exit(code);

if (module === 'ratchet_prime_rl.look') {
  const given = JSON.parse(process.env['STAND_IN_LOOK'] ?? '{}');
  process.stdout.write(
    `${JSON.stringify({ ...(rankCommand.at(-1)?.includes('older') ? older : installation), ...given })}\n`,
  );
} else if (module === 'torch.distributed.run') await launch();
else throw new Error(`the stand-in has no module ${String(module)}`);

async function launch() {
  const count = Number(valueOf('--nproc-per-node'));
  const [nodes, node] = [Number(valueOf('--nnodes') ?? 1), Number(valueOf('--node-rank') ?? 0)];
  if (nodes > 1) await meet(nodes, node);
  const settings = /** @type {string} */ (args.at(-1));
  const [command = '', ...before] = rankCommand;
  const ranks = Array.from({ length: count }, (_, i) => {
    const rank = String(node * count + i);
    return spawn(command, [...before, settings, rank, String(nodes * count)], { detached: true, stdio: 'inherit' });
  });
  end = (code) => {
    for (const { pid } of ranks) {
      try {
        if (pid) process.kill(pid, 'SIGKILL');
      } catch {
        // it has ended
      }
    }
    process.exit(code);
  };
  let running = count;
  for (const rank of ranks)
    rank.on('exit', (code) => {
      if (code !== 0) end(1);
      running -= 1;
      if (running === 0) process.exit(0);
    });
  process.on('SIGTERM', () => end(1));
}

/** @param {string} name */
function valueOf(name) {
  return args.find((arg) => arg.startsWith(`${name}=`))?.slice(name.length + 1);
}

/**
 * Launchers of several nodes wait for one another at the first one, and a launcher that loses another ends, as ranks do that lose others.
 * @param {number} nodes
 * @param {number} node
 */
async function meet(nodes, node) {
  const place = { host: valueOf('--master-addr'), port: Number(valueOf('--master-port')) };
  /** @type {import('node:net').Socket[]} */
  const sockets = [];
  /** @param {import('node:net').Socket} socket */
  const hold = (socket) => {
    socket.on('error', () => undefined).on('close', () => setTimeout(() => end(1), graceMs).unref());
    sockets.push(socket);
  };
  if (node === 0) {
    const server = createServer(hold).listen(place.port, place.host);
    while (sockets.length < nodes - 1) await delay(lookMs);
    server.close();
    for (const socket of sockets) socket.write('go');
  } else {
    for (;;) {
      const socket = connect(place);
      const heard = await new Promise((resolve) => {
        socket.once('data', () => resolve(true)).once('error', () => resolve(false)).once('close', () => resolve(false)); // prettier-ignore
      });
      if (heard) return hold(socket);
      await delay(lookMs);
    }
  }
}
