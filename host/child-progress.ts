import { execFile } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';

/** How long to wait for a child process that imports Python, installs packages or loads a model. */
export interface ChildPatience {
  /** How long it may produce no output and use no CPU time. */
  readonly standstillMs: number;
  /** The most it may take in total, even while it makes progress. */
  readonly mostMs: number;
}

/** Name of the setting for the total, in minutes. */
const minutesVariable = 'RATCHET_IMPORT_MINUTES';
const minutesDefault = 60;
const standstillMs = 120_000;
const lookMs = 1_000;

/** How fast a child is depends on the machine and its load, so a child that makes progress is given more time. */
export function childPatience(environment: Readonly<NodeJS.ProcessEnv> = process.env): ChildPatience {
  const minutes = Number(environment[minutesVariable] ?? minutesDefault);
  return { standstillMs, mostMs: (minutes > 0 ? minutes : minutesDefault) * 60_000 };
}

interface ChildWatch {
  /** Resolves with the reason to stop waiting. */
  readonly over: Promise<string>;
  /** Reports output of the child, which counts as progress. */
  heard(): void;
  end(): void;
}

/** Watches a child until `end` is called or it stops making progress. A stalled child is not killed here: the caller does that. */
export function watchChild(
  pid: number | undefined,
  patience: ChildPatience = childPatience(),
  everyMs: number = lookMs,
): ChildWatch {
  const ended = new AbortController();
  const mostTurns = patience.mostMs / everyMs;
  const stillTurns = patience.standstillMs / everyMs;
  let isHeard = false;
  let tell: (why: string) => void = () => undefined;
  const over = new Promise<string>((resolve) => (tell = resolve));
  const look = async (): Promise<void> => {
    let before = await workOf(pid);
    // Counts turns instead of time: if this process or the machine is suspended, so is the child.
    for (let [turn, still] = [1, 1]; !ended.signal.aborted; turn++, still++) {
      await delay(everyMs, undefined, { signal: ended.signal, ref: false }).catch(() => undefined); // aborted, so the loop ends
      const now = await workOf(pid);
      if (isHeard || now !== before) still = 0;
      isHeard = false;
      before = now;
      if (ended.signal.aborted) return;
      if (turn >= mostTurns) return tell(`it had not finished after ${inWords(patience.mostMs)}, although it was still working; ${minutesVariable} allows more minutes`); // prettier-ignore
      if (still >= stillTurns) return tell(`it stood still for ${inWords(patience.standstillMs)}: no output, and no CPU time used`); // prettier-ignore
    }
  };
  void look();
  return { over, heard: () => (isHeard = true), end: () => ended.abort() };
}

/** Returns a program's output; null if it is missing, fails or stalls. */
export async function answerOf(
  command: string,
  args: readonly string[],
  env: Readonly<NodeJS.ProcessEnv>,
  patience: ChildPatience = childPatience(),
): Promise<string | null> {
  const running = promisify(execFile)(command, [...args], { env });
  const watch = watchChild(running.child.pid, patience);
  void watch.over.then(() => running.child.kill('SIGKILL'));
  try {
    return (await running).stdout;
  } catch {
    return null;
  } finally {
    watch.end();
  }
}

function inWords(ms: number): string {
  return ms >= 120_000 && ms % 60_000 === 0 ? `${ms / 60_000} minutes` : `${ms / 1000} s`;
}

interface ProcessWork {
  readonly pid: number;
  readonly parent: number;
  /** CPU time used so far; grows while the process works. */
  readonly used: string;
}

/** CPU time used by a process and its descendants, as a text that changes when any of them works. */
async function workOf(pid: number | undefined): Promise<string> {
  if (pid === undefined) return '';
  const all = process.platform === 'linux' ? await fromProc() : await fromPs();
  const family = new Set([pid]);
  for (let size = 0; size !== family.size;) {
    size = family.size;
    for (const one of all) if (family.has(one.parent)) family.add(one.pid);
  }
  return all.flatMap((one) => (family.has(one.pid) ? [`${one.pid}:${one.used}`] : [])).join(' ');
}

/** Reads /proc. Processes that end during the scan are left out. */
async function fromProc(): Promise<ProcessWork[]> {
  const pids = (await readdir('/proc').catch(() => [])).filter((name) => /^\d+$/.test(name));
  const read = pids.map(async (name): Promise<ProcessWork[]> => {
    const text = await readFile(`/proc/${name}/stat`, 'utf8').catch(() => '');
    // These fields follow the program name, which may contain any character: state, parent, …, user and system ticks.
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return fields.length < 13 ? [] : [{ pid: Number(name), parent: Number(fields[1]), used: `${fields[11]}+${fields[12]}` }]; // prettier-ignore
  });
  return (await Promise.all(read)).flat();
}

async function fromPs(): Promise<ProcessWork[]> {
  const { stdout } = await promisify(execFile)('ps', ['-A', '-o', 'pid=,ppid=,time=']).catch(() => ({ stdout: '' }));
  return stdout.split('\n').flatMap((line) => {
    const [pid, parent, used] = line.trim().split(/\s+/);
    return used === undefined ? [] : [{ pid: Number(pid), parent: Number(parent), used }];
  });
}
