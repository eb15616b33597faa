import { readFileSync } from 'node:fs';
import { freemem, totalmem } from 'node:os';
import { dirname, join } from 'node:path';

/** The memory that this process may use: the machine's, or the limit of its container or control group. */
export interface MachineMemory {
  readonly totalBytes: number;
  /** Memory that is free or can be freed at once, such as cached files. */
  readonly availableBytes: number;
  /** A control group's limit is below the machine's memory. */
  readonly isLimited: boolean;
}

/** Files of a control group's memory controller; version 2, then version 1. */
interface Controller {
  readonly line: RegExp;
  readonly mount: string;
  readonly limit: string;
  readonly usage: string;
  readonly cached: RegExp;
}

const controllers: readonly Controller[] = [
  {
    line: /^0::(\/.*)$/m,
    mount: '/sys/fs/cgroup',
    limit: 'memory.max',
    usage: 'memory.current',
    cached: /^inactive_file (\d+)$/m,
  },
  {
    line: /^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(\/.*)$/m,
    mount: '/sys/fs/cgroup/memory',
    limit: 'memory.limit_in_bytes',
    usage: 'memory.usage_in_bytes',
    cached: /^total_inactive_file (\d+)$/m,
  },
];

/** `root` (of /proc and /sys) and `physicalBytes` (the machine's memory) are for tests. */
export function machineMemory({ root = '/', physicalBytes = totalmem() } = {}): MachineMemory {
  const groups = controlGroups(root);
  const limits = groups.map(({ limitBytes }) => limitBytes);
  const totalBytes = Math.min(physicalBytes, ...limits);
  const rooms = groups.map(({ limitBytes, usedBytes }) => Math.max(0, limitBytes - usedBytes));
  return {
    totalBytes,
    availableBytes: Math.min(totalBytes, availableOnMachine(root), ...rooms),
    isLimited: totalBytes < physicalBytes,
  };
}

/** MemAvailable counts memory that Linux can free at once; other systems only report free memory. */
function availableOnMachine(root: string): number {
  const kibibytes = /^MemAvailable:\s+(\d+) kB$/m.exec(textOf(join(root, 'proc/meminfo')))?.[1];
  return kibibytes === undefined ? freemem() : Number(kibibytes) * 1024;
}

interface ControlGroup {
  readonly limitBytes: number;
  readonly usedBytes: number;
}

/** The process's groups that have a limit, up to the root: the tightest holds. */
function controlGroups(root: string): ControlGroup[] {
  const membership = textOf(join(root, 'proc/self/cgroup'));
  return controllers.flatMap((controller) => {
    const mount = join(root, controller.mount);
    const path = controller.line.exec(membership)?.[1] ?? '/';
    return ancestors(path).flatMap((group) => readGroup(join(mount, group), controller));
  });
}

/** In a container the path may be that of the host: then its own group is the mount itself, which comes last. */
function ancestors(path: string): string[] {
  return path === '/' || path === '.' ? ['/'] : [path, ...ancestors(dirname(path))];
}

function readGroup(folder: string, { limit, usage, cached }: Controller): ControlGroup[] {
  const limitBytes = Number.parseInt(textOf(join(folder, limit)), 10); // "max", and no file, are no limit
  if (Number.isNaN(limitBytes)) return [];
  const inUse = Number.parseInt(textOf(join(folder, usage)), 10);
  const cachedBytes = Number(cached.exec(textOf(join(folder, 'memory.stat')))?.[1] ?? 0);
  return [{ limitBytes, usedBytes: Number.isNaN(inUse) ? 0 : Math.max(0, inUse - cachedBytes) }];
}

/** '' without such a file, as on systems other than Linux. */
function textOf(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
