import { readdirSync, readFileSync } from 'node:fs';

/** CPU seconds while something was measured: a pair of runs that had different company is no pair. */
export interface CpuUse {
  /** Of this process and all below it. */
  readonly own_s: number;
  /** Of everything else on the machine, and of processes of ours that lived for less than half a second. */
  readonly others_s: number;
}

const intervalMs = 500;
/** Linux reports CPU time to programs in hundredths of a second, whatever its own clock. */
const ticksPerSecond = 100;

/** Reads the meter beside `work`. null where there is no /proc. */
export async function meterCpu<T>(work: () => Promise<T>): Promise<{ result: T; cpu: CpuUse | null }> {
  if (process.platform !== 'linux') return { result: await work(), cpu: null };
  const own = new Map<string, number>();
  const read = (): { busy: number; own: number } => {
    for (const [name, ticks] of familyTicks(process.pid)) own.set(name, ticks);
    return { busy: busyTicks(readFileSync('/proc/stat', 'utf8')), own: sum(own.values()) };
  };
  const before = read();
  const timer = setInterval(read, intervalMs);
  try {
    const result = await work();
    const after = read();
    const ownTicks = after.own - before.own;
    const othersTicks = Math.max(0, after.busy - before.busy - ownTicks);
    return { result, cpu: { own_s: ownTicks / ticksPerSecond, others_s: othersTicks / ticksPerSecond } };
  } finally {
    clearInterval(timer);
  }
}

/** All but idle and waiting for disks, of all processors together. */
export function busyTicks(stat: string): number {
  const [user, nice, system, , , irq, softirq, steal] = stat.split('\n', 1)[0]!.split(/\s+/).slice(1).map(Number);
  return sum([user!, nice!, system!, irq!, softirq!, steal!]);
}

/** CPU time of a process and its descendants. The start time is part of the name, because process ids come again. */
function familyTicks(root: number): Map<string, number> {
  const processes = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(readProcess)
    .filter((found) => found !== null);
  const family = new Set([root]);
  for (let grown = 0; grown !== family.size;) {
    grown = family.size;
    for (const { pid, parent } of processes) if (family.has(parent)) family.add(pid);
  }
  return new Map(
    processes.filter(({ pid }) => family.has(pid)).map(({ pid, startedAt, ticks }) => [`${pid} ${startedAt}`, ticks]),
  );
}

function readProcess(name: string): { pid: number; parent: number; startedAt: string; ticks: number } | null {
  try {
    // The second field is the program's name in parentheses, which may hold anything.
    const text = readFileSync(`/proc/${name}/stat`, 'utf8');
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return {
      pid: Number(name),
      parent: Number(fields[1]),
      startedAt: fields[19]!,
      ticks: Number(fields[11]) + Number(fields[12]),
    };
  } catch {
    return null; // it ended meanwhile
  }
}

function sum(values: Iterable<number>): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}
