import type { JsonValue } from '../json-value.ts';
import type { CodeRef } from './code.ts';

/** Where sandboxes come from. Plain JSON without secrets: it is stored, so that whoever sweeps can ask the same provider. */
export type SandboxProviderSpec =
  | {
      readonly kind: 'namespace';
      /** The interpreter that looks after each sandbox: a command or a path. */
      readonly python: string;
    }
  | {
      readonly kind: 'docker';
      /** The Unix socket of Docker or Podman; null = the usual one. */
      readonly socket: string | null;
    }
  | {
      readonly kind: 'ssh';
      /** As `ssh` takes it: a name of its config, `host` or `user@host`. */
      readonly host: string;
      readonly port: number | null;
      /** A file with a private key; null = what ssh itself would use. */
      readonly identityFile: string | null;
      /** A file with the host's key; null = ssh's own. An unknown host is refused. */
      readonly knownHostsFile: string | null;
      /** Folder there, below which each sandbox gets its own. */
      readonly folder: string;
    }
  | {
      readonly kind: 'module';
      readonly import: CodeRef;
      readonly options: Readonly<Record<string, JsonValue>>;
    };

/** Sandboxes of one provider that share a quota. */
export interface SandboxPoolSpec {
  readonly provider: SandboxProviderSpec;
  /** Sandboxes at once over all workers and runs of this outputs folder; null = as many as the provider gives, or for namespaces what their machine bears. */
  readonly quota: number | null;
  /** Sandboxes of each worker that stand ready, beside those in use. */
  readonly warm: number;
  /** What one costs an hour; 0 = nothing, or unknown. */
  readonly costPerHour: number;
}

/**
 * Who has a sandbox. A later attempt of the same group and index shows that an earlier one is over; so does the end of
 * its workflow, or on the same host that of its process.
 */
export interface LeaseOwner {
  /** Name of the run, evaluation or search, for people. */
  readonly run: string;
  /** The Temporal workflow that it is for: what it has when that has ended is nobody's. */
  readonly workflow?: string | undefined;
  readonly lineage?: string;
  readonly group?: string;
  readonly index?: number;
  readonly attempt?: number;
  /** The process: `HOST:PID:START`. */
  readonly worker: string;
}

/** Keys of snapshots that begin so belong to the process that made them: nobody else goes on from them. */
export const ofThisProcess = 'process/';
/** Begins the keys of snapshots of rollouts: `rollouts/WORKFLOW/LINEAGE/GROUP/INDEX/…`, each part encoded. */
export const ofRollouts = 'rollouts/';

/** A saved work folder: a tar in a store. Plain JSON. */
export interface SnapshotRef {
  readonly key: string;
  readonly sizeBytes: number;
  readonly sha256: string;
}
