import type { SandboxTraits } from '../../core/kinds/sandboxes.ts';
import type { LeaseOwner, SnapshotRef } from '../../core/settings/sandboxes.ts';

/**
 * The port of sandboxes: a place of its own for a program that is not trusted. A provider makes them, and knows them by
 * names that its caller chose before. Each method may be called again after a crash; docs/internals/sandboxes.md.
 *
 * Failures are `RatchetError`s: `SandboxRefused` where asking again does not help, `SandboxUnavailable` where it may (a
 * full quota, with its wait), and `SandboxUnanswered` where the sandbox may exist although nothing came back.
 */
export interface SandboxProvider {
  /** Its kind, for messages; of a module what it calls itself. */
  readonly kind: string;
  readonly traits: Pick<SandboxTraits, 'isolatesNetwork' | 'snapshots' | 'showsFolders' | 'endsWithWorker'>;
  /**
   * Begins a sandbox; a second one of its name is refused. When it rejects with anything but `SandboxUnanswered`, no
   * sandbox of the name is left, or comes later.
   */
  create(request: SandboxRequest, signal?: AbortSignal): Promise<Sandbox>;
  /** The sandbox of a name, by whomever it was created; null = there is none at the moment. */
  find(name: string): Promise<Sandbox | null>;
  /** Those with the label `project`; of all projects without one. */
  list(project?: string): Promise<readonly ListedSandbox[]>;
  /** Ends it with all its processes, or does nothing where there is none. It may stay listed for a moment. */
  destroy(name: string): Promise<void>;
  /** Ends what belongs to this provider; sandboxes that end with their worker end now. */
  close(): Promise<void>;
}

export interface ListedSandbox {
  readonly name: string;
  readonly createdAtMs: number;
  readonly labels: SandboxLabels;
}

export interface SandboxLabels {
  /** Whose sandboxes these are: a sweeper ends none of another project. */
  readonly project: string;
  /** For people: the rollout that has it. */
  readonly owner: string;
}

export interface SandboxRequest {
  /** Unique for ever, written into a lease before: 1 to 63 of `a-z`, `0-9` and `-`. */
  readonly name: string;
  /** Where the kind takes one; refused elsewhere. */
  readonly image?: string;
  /** Put into the work folder before anything runs. */
  readonly files?: readonly SandboxFile[];
  /** Folders of this machine that it may read, at the same paths (an interpreter, a package). */
  readonly folders?: readonly string[];
  /** Variables of every command. Nothing of this process's own environment is passed. */
  readonly env?: Readonly<Record<string, string>>;
  readonly limits: SandboxLimits;
  /** The content of the work folder at its start. */
  readonly snapshot?: SnapshotRef;
  /** A Unix socket of this machine, to which a port of the sandbox's own loopback leads. */
  readonly route?: { readonly socket: string; readonly port: number };
  /** `route`: nothing but the route is reachable. `open`: what its machine reaches. */
  readonly network: 'route' | 'open';
  readonly labels: SandboxLabels;
}

export interface SandboxFile {
  /** Relative to the work folder; it may not lead out of it. */
  readonly path: string;
  readonly bytes: Uint8Array;
  /** Permissions, 0o644 by default. */
  readonly mode?: number;
}

export interface SandboxLimits {
  /** Memory of all its processes together. */
  readonly memoryMb: number;
  /** What it may write: the work folder with its temporary files. */
  readonly diskMb: number;
  readonly cpus?: number;
  /** Processes and threads at once; 256 by default. */
  readonly processes?: number;
  /** The provider ends it after so many seconds, whatever becomes of its owner. */
  readonly seconds: number;
}

export interface Sandbox {
  readonly name: string;
  /** The work folder, as programs inside name it: the current folder of commands, and the base of relative paths. */
  readonly folder: string;
  /** 127.0.0.1 at this port leads to the socket of the route; null without a route. Some kinds choose another one. */
  readonly routePort: number | null;
  /** Runs a command and waits. A command that fails, is stopped or runs out of time is a result, not an error. */
  exec(command: SandboxCommand, signal?: AbortSignal): Promise<CommandResult>;
  /** Begins a command; several may run at once. */
  start(command: SandboxCommand, signal?: AbortSignal): Promise<RunningCommand>;
  /** A file as bytes; rejects with `SandboxRefused` if there is none, or it is larger. */
  read(path: string, bytesMax: number): Promise<Buffer>;
  /** Makes or replaces a file, and its folders. `mode` is 0o644 by default. */
  write(path: string, bytes: Uint8Array, mode?: number): Promise<void>;
  /** Saves the work folder as it is: what runs may be half written. Missing where the kind has no snapshots. */
  snapshot?(target: SnapshotTarget): Promise<SnapshotRef>;
  destroy(): Promise<void>;
}

export interface SandboxCommand {
  /** A program and its arguments, as they are: no shell reads them. */
  readonly argv: readonly [string, ...string[]];
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly stdin?: string | Uint8Array;
  /** It is stopped with all its children after so many seconds. */
  readonly timeoutS: number;
  /** Kept bytes of each of stdout and stderr: their beginning and their end. The command is not stopped by it. */
  readonly outputBytesMax: number;
}

export interface CommandResult {
  /** null when a signal ended it. */
  readonly code: number | null;
  readonly signal: string | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly isTimedOut: boolean;
  /** Whether some output was left out. */
  readonly isCut: boolean;
}

export interface RunningCommand {
  /**
   * Resolves at its end, which in containers and on hosts is also the end of its output: what it leaves in the
   * background there has to write elsewhere. Rejects with `SandboxUnavailable` when the sandbox ends first.
   */
  wait(): Promise<CommandResult>;
  /** Stops it with all its children; `wait` then resolves. */
  kill(): Promise<void>;
  /** Output so far. */
  output(): { readonly stdout: string; readonly stderr: string };
}

/** Where a snapshot goes, and how large it may be. */
export interface SnapshotTarget {
  readonly key: string;
  readonly bytesMax: number;
}

/** Where snapshots are kept; `runs/sandboxes/` keeps them in the store. */
export interface SnapshotPlace {
  /** Durable when it returns. */
  put(key: string, tar: AsyncIterable<Uint8Array>): Promise<SnapshotRef>;
  /** Throws `CheckpointDamaged` when its bytes are others than those that were put. */
  open(ref: SnapshotRef): AsyncIterable<Uint8Array>;
}

/** Sandboxes under leases, see `play/sandboxes/`: what a rollout is given (`RolloutPlace.sandboxes`). */
export interface SandboxLeases {
  /**
   * Writes a lease, waits for a place in the quota, then creates the sandbox. After `deadlineS`, or when the owner has
   * ended, it is ended by whoever looks next.
   */
  take(request: LeaseRequest, options: TakeOptions): Promise<LeasedSandbox>;
}

/** Name and labels follow from the lease. */
export type LeaseRequest = Omit<SandboxRequest, 'name' | 'labels'>;

export interface TakeOptions {
  readonly owner: LeaseOwner;
  /** Seconds from now, with the wait for a place but for `waitS`. */
  readonly deadlineS: number;
  /** Further seconds that it may wait for a place; 0 by default. */
  readonly waitS?: number;
  readonly signal: AbortSignal;
}

export interface LeasedSandbox {
  readonly sandbox: Sandbox;
  readonly lease: { readonly name: string; readonly deadlineAtMs: number };
  /** Destroys the sandbox and writes down that it has ended, with its seconds and cost. The first call counts. */
  readonly end: () => Promise<LeaseBill>;
}

export interface LeaseBill {
  readonly seconds: number;
  /** In the currency of `cost_per_hour`; 0 where nothing is known. */
  readonly cost: number;
}
