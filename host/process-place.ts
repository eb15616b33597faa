import { createHash } from 'node:crypto';
import { readFileSync, readlinkSync } from 'node:fs';
import os from 'node:os';

/** Namespace of process ids of a whole machine, as Linux names it on every one. */
const wholeMachine = 'pid:[4026531836]';

/**
 * Names what process ids count in, 8 hex digits: nobody sees a process of another container or host, whatever name and
 * folders they share. A machine keeps its place when it starts again; a container has one for as long as its machine runs.
 */
export function processPlace({ host, namespace, machine, boot }: PlaceFacts = factsHere()): string {
  const isKept = namespace === wholeMachine && machine !== '';
  const parts = [host, namespace, isKept ? machine : boot];
  return createHash('sha256').update(parts.join(' ')).digest('hex').slice(0, 8);
}

/** The start of this machine, 8 hex digits; empty where it is not told. */
export function bootHere(): string {
  const { boot } = factsHere();
  return boot === '' ? '' : createHash('sha256').update(boot).digest('hex').slice(0, 8);
}

/** Each is empty where it is not told: all but the host's name outside of Linux. */
interface PlaceFacts {
  readonly host: string;
  /** Of process ids. */
  readonly namespace: string;
  readonly machine: string;
  readonly boot: string;
}

let here: PlaceFacts | undefined;

function factsHere(): PlaceFacts {
  return (here ??= {
    host: os.hostname(),
    namespace: orEmpty(() => readlinkSync('/proc/self/ns/pid')),
    machine: orEmpty(() => readFileSync('/etc/machine-id', 'utf8')),
    boot: orEmpty(() => readFileSync('/proc/sys/kernel/random/boot_id', 'utf8')),
  });
}

function orEmpty(read: () => string): string {
  try {
    return read().trim();
  } catch {
    return ''; // not told here
  }
}
