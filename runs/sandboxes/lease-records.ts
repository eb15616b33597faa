import type { LeaseOwner, SandboxProviderSpec } from '../../core/settings/sandboxes.ts';

/** Written before anything is created. */
export interface SandboxLease {
  readonly name: string;
  readonly pool: string;
  readonly owner: LeaseOwner;
  readonly createdAtMs: number;
  /** When it ends, whoever has it. */
  readonly deadlineAtMs: number;
  readonly costPerHour: number;
}

/** Written immediately before the provider is asked. */
export interface SandboxCreating {
  readonly atMs: number;
}

/** Written when a sandbox is handed to its owner, which for a warm one comes later than its lease. */
export interface SandboxLive {
  readonly atMs: number;
  readonly owner: LeaseOwner;
  readonly deadlineAtMs: number;
}

/** `returned` by its owner; what else says why somebody ended it. */
export type LeaseEnd = 'returned' | 'failed' | 'deadline' | 'superseded' | 'run ended' | 'worker gone' | 'unanswered';

/** The account of a lease. */
export interface EndedSandbox {
  readonly name: string;
  readonly pool: string;
  readonly owner: LeaseOwner;
  readonly createdAtMs: number;
  readonly endedAtMs: number;
  readonly why: LeaseEnd;
  /** From the request to the provider on; 0 where that was never made. */
  readonly seconds: number;
  readonly cost: number;
}

/** A provider that had a sandbox at some time: a sweep asks each. */
export interface SandboxPool {
  readonly provider: SandboxProviderSpec;
}

/** Who holds a place of a quota. */
export interface SandboxPlace {
  readonly name: string;
}

/** Whose sandboxes an outputs folder's are, on their labels. */
export interface SandboxProject {
  readonly id: string;
}
