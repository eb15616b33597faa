import { isAlive } from '../../host/is-alive.ts';
import { randomBytes, createHash } from 'node:crypto';
import { chmodSync, existsSync, lstatSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { createConnection, createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { RatchetError } from '../../core/errors.ts';

/** A lock that the death of its holder releases in any case: it is a socket that the holder listens on. */
interface HeldLock {
  /** Sets the facts that others read when they ask for the lock's holder. */
  tell(facts: unknown): void;
  release(): void;
}

export interface LockHolder {
  readonly pid: number;
  /** Facts set by the holder; null while it is deciding, or does not answer (a stopped process). */
  readonly facts: unknown;
}

type LockResult = { readonly lock: HeldLock } | { readonly holder: LockHolder };

/** Time after which a silent holder counts as stopped; it still holds. */
const answerTimeoutMs = 1_000;

/** Number of retries after a holder broke off its answer. */
const answerAttemptsMax = 20;

/** Two starters settle within a few turns of this wait. */
const settleMs = 15;
const settleTurnsMax = 1_000;

/**
 * Takes the lock or returns its holder. Every starter listens on a socket under a fresh name, then looks at the others:
 * the later of two starters always sees the earlier, so never two hold. The smaller id waits and the larger withdraws,
 * so one always wins. Sockets of dead processes are removed; since names are not reused, this removes no live one.
 */
export async function takeLock(key: string, facts: unknown, folder: string = openRuntimeFolder()): Promise<LockResult> {
  const own = await listen(folder, key, facts);
  for (let turn = 0; turn < settleTurnsMax; turn += 1) {
    const others = (await look(folder, key)).filter((other) => other.id !== own.id);
    const winner = others.find((other) => other.state === 'held' || (other.state === 'asking' && other.id < own.id));
    if (winner) {
      own.release();
      return { holder: { pid: winner.pid, facts: winner.facts } };
    }
    if (others.length === 0) {
      own.hold();
      await sweep(folder);
      return { lock: own };
    }
    await sleep(settleMs);
  }
  own.release();
  throw new RatchetError(
    'Unsupported',
    `the lock in ${folder} did not settle; stop other Ratchet processes and try again`,
  );
}

/** Waits for the lock; `onWait` is called once with its holder. Serializes work that must not run twice at once. */
export async function waitForLock(
  key: string,
  facts: unknown,
  onWait: (holder: LockHolder) => void,
  folder: string = openRuntimeFolder(),
): Promise<HeldLock> {
  for (let turn = 0; ; turn += 1) {
    const result = await takeLock(key, facts, folder);
    if ('lock' in result) return result.lock;
    if (turn === 0) onWait(result.holder);
    await sleep(500);
  }
}

/** The lock's present holder, or null. */
export async function readLock(key: string, folder: string = openRuntimeFolder()): Promise<LockHolder | null> {
  const holder = (await look(folder, key)).find((other) => other.state === 'held');
  return holder ? { pid: holder.pid, facts: holder.facts } : null;
}

/**
 * The folder of the sockets: short, because a socket's path may have 103 bytes on macOS, and the same for every shell of a user,
 * so TMPDIR and XDG_RUNTIME_DIR, which differ between a terminal and a service, are not asked.
 */
export function openRuntimeFolder(folder = process.env['RATCHET_RUNTIME_DIR'] ?? `/tmp/ratchet-${userId()}`): string {
  if (Buffer.byteLength(folder) > 50) {
    throw new RatchetError(
      'Unsupported',
      `RATCHET_RUNTIME_DIR may have 50 bytes, because it holds sockets; ${folder} is longer`,
    );
  }
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const facts = lstatSync(folder);
  if (!facts.isDirectory() || facts.uid !== userId()) {
    throw new RatchetError(
      'Unsupported',
      `${folder} belongs to somebody else; remove it or set RATCHET_RUNTIME_DIR to a folder of yours`,
    );
  }
  if ((facts.mode & 0o077) !== 0) chmodSync(folder, 0o700);
  return folder;
}

interface OwnLock extends HeldLock {
  readonly id: string;
  hold(): void;
}

async function listen(folder: string, key: string, initialFacts: unknown): Promise<OwnLock> {
  const id = randomBytes(8).toString('hex');
  const path = join(folder, `${digest(key)}.${id}.${process.pid}.sock`);
  let state: 'asking' | 'held' = 'asking';
  let facts = initialFacts;
  const server = createServer((socket) => {
    socket.on('error', () => socket.destroy());
    socket.end(`${JSON.stringify({ state, facts })}\n`);
  });
  // Others see a socket only once it listens; between bind and listen it would look dead.
  const hidden = `${path}.new`;
  await startListening(server, hidden);
  renameSync(hidden, path);
  server.unref();
  return {
    id,
    hold() {
      state = 'held';
    },
    tell(next) {
      facts = next;
    },
    release() {
      rmSync(path, { force: true });
      server.close();
    },
  };
}

function startListening(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(path, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

interface Seen {
  readonly id: string;
  readonly pid: number;
  readonly state: 'asking' | 'held';
  readonly facts: unknown;
}

async function look(folder: string, key: string): Promise<Seen[]> {
  const names = readdirSync(folder).filter((name) => name.startsWith(`${digest(key)}.`) && name.endsWith('.sock'));
  const seen = await Promise.all(names.map((name) => ask(folder, name)));
  return seen.filter((one) => one !== null);
}

/** Sockets of processes that were killed while they held some other lock; asking the dead removes them. */
async function sweep(folder: string): Promise<void> {
  const names = readdirSync(folder).filter((name) => name.endsWith('.sock') && !isAlive(Number(name.split('.')[2])));
  await Promise.all(names.map((name) => ask(folder, name)));
}

async function ask(folder: string, name: string): Promise<Seen | null> {
  const [, id = '', pid = ''] = name.split('.');
  const path = join(folder, name);
  for (let attempt = 1; ; attempt += 1) {
    const answer = await converse(path);
    if (answer === 'dead') rmSync(path, { force: true });
    if (!existsSync(path)) return null;
    const told = parseAnswer(answer);
    if (told !== null) return { id, pid: Number(pid), ...told };
    // A holder that withdraws or dies breaks off; a stopped one is silent, and still holds.
    if (answer === 'silent' || attempt === answerAttemptsMax) {
      return { id, pid: Number(pid), state: 'held', facts: null };
    }
    await sleep(settleMs);
  }
}

function parseAnswer(answer: string): Pick<Seen, 'state' | 'facts'> | null {
  try {
    const { state, facts } = JSON.parse(answer) as Pick<Seen, 'state' | 'facts'>;
    return { state, facts };
  } catch {
    return null;
  }
}

function converse(path: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = createConnection(path);
    let text = '';
    const finish = (answer: string) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(answer);
    };
    const timer = setTimeout(() => finish('silent'), answerTimeoutMs);
    socket.setEncoding('utf8');
    socket.on('data', (chunk: string) => (text += chunk));
    socket.on('end', () => finish(text));
    socket.on('error', (error: NodeJS.ErrnoException) => {
      finish(error.code === 'ECONNREFUSED' || error.code === 'ENOENT' ? 'dead' : 'broken off');
    });
  });
}

const digest = (key: string) => createHash('sha256').update(key).digest('hex').slice(0, 16);

const userId = () => process.getuid?.() ?? 0;
