import { core } from 'zod';
import { minutePattern } from '../../core/minute-of.ts';
import { lineageNumber } from '../../core/names.ts';
import { decodeRanges } from '../../core/rl/ledger.ts';
import type { PlayedPart } from '../../core/rl/rollout/played-part.ts';
import type { ObjectRef, StepCommit } from '../../core/rl/run-state.ts';
import { RunSpec } from '../../config/run-spec.ts';
import { damaged, isRecord, type Shape } from '../../store/objects.ts';
import type { LineageRecord } from '../run-access.ts';
import { decodeStored, presentSettings } from './stored-forms.ts';
import type { ForkOrigin } from '../lineages/unfinished-fork.ts';

/**
 * Records from which a run is read. No digest above covers them, so their shape is checked: an edited file is named
 * here instead of failing later at a missing part. `key`: place of the record, for messages.
 */
export function commitIn(bytes: Uint8Array, key: string): StepCommit {
  return decodeStored<StepCommit>(bytes, key, commitShape);
}

const commitShape: Shape = ({ step, run, lineage, policy, outcomes, metrics, state, ...more }) => ({
  'a step': isCount(step),
  'a run and a lineage': typeof run === 'string' && typeof lineage === 'string',
  'a policy with its file and the list of its files': isVersion(policy),
  'a parent, or null': more['parent'] === null || typeof more['parent'] === 'string',
  'an origin with run, lineage, step and sha256, or none': more['origin'] === undefined || isOrigin(more['origin']),
  'a reference to its spec': isRef(more['spec']),
  'references to its plan and optimizer, or null': [more['plan'], more['optimizer']].every(
    (ref) => ref === null || isRef(ref),
  ),
  'outcomes whose groups are ranges such as "1-4,7"': isRecord(outcomes) && areOutcomes(outcomes),
  // JSON has null for numbers that are not finite.
  'metrics that are numbers':
    isRecord(metrics) && Object.values(metrics).every((value) => value === null || typeof value === 'number'),
  'a state with policy, reference, curriculum, surplus, overrides and pending evaluations':
    isRecord(state) && isState(state),
  'a time of commit': typeof more['committedAt'] === 'string' && !Number.isNaN(Date.parse(more['committedAt'])),
});

/** `origins/lineage_N.json` */
export function lineageRecordIn(bytes: Uint8Array, key: string): LineageRecord {
  const number = Number(/lineage_(\d+)\.json$/.exec(key)?.[1]);
  return decodeStored<LineageRecord>(bytes, key, ({ lineage, origin, request, begunAt }) => ({
    [`the lineage l${number}`]: typeof lineage === 'string' && lineageNumber(lineage) === number,
    'an origin with run, lineage, step and sha256': isOrigin(origin),
    'a request and a time': typeof request === 'string' && typeof begunAt === 'string',
  }));
}

/** `run.json`: the settings that the run began with. */
export function runRecordIn(bytes: Uint8Array, key: string): RunSpec {
  const { spec } = decodeStored<{ readonly spec: unknown }>(bytes, key);
  return settingsOf(spec, key);
}

/** Time the run began, from `run.json`; null for a run older than this field. */
export function begunAtIn(bytes: Uint8Array, key: string): string | null {
  const { begunAt = null } = decodeStored<{ readonly begunAt?: string }>(bytes, key, ({ begunAt: said }) => ({
    'when it was begun (2026-11-26T14:05), or nothing of it':
      said === undefined || (typeof said === 'string' && minutePattern.test(said)),
  }));
  return begunAt;
}

/** `run.json` of a fork: the run and the step it begins with; null of a run that begins with a model. */
export function forkOriginIn(bytes: Uint8Array, key: string): ForkOrigin | null {
  const { fork = null } = decodeStored<{ readonly fork?: ForkOrigin }>(bytes, key, ({ fork: origin }) => ({
    'the run and the step that it is a fork of, or neither':
      origin === undefined || (isRecord(origin) && typeof origin['from'] === 'string' && isCount(origin['step'])),
  }));
  return fork;
}

/** `specs/….json` */
export function specIn(bytes: Uint8Array, key: string): RunSpec {
  return settingsOf(decodeStored(bytes, key), key);
}

function settingsOf(value: unknown, key: string): RunSpec {
  const read = RunSpec.safeParse(presentSettings(value, key));
  if (read.success) return read.data;
  const [issue] = read.error.issues;
  const said = issue?.message.replace(/^Invalid input: /, '').replace(/received undefined$/, 'found nothing');
  const where = issue && issue.path.length > 0 ? ` (${core.toDotPath(issue.path)}: ${said})` : '';
  throw damaged(key, `expected the settings of a run, found others${where}`, read.error);
}

/** `claims/claim_N.json`: the workflow that drives the run. */
interface WorkflowClaim {
  readonly workflowId: string;
}

export function claimIn(bytes: Uint8Array, key: string): WorkflowClaim {
  return decodeStored(bytes, key, ({ workflowId }) => ({
    'the id of a workflow': typeof workflowId === 'string' && workflowId !== '',
  }));
}

/** `claims/trainer/epoch_N.json`: holder of the run since hold N. */
export interface TrainerClaim {
  readonly epoch: number;
  /** Identifies the GPU process. */
  readonly holder: string;
}

export function trainerClaimIn(bytes: Uint8Array, key: string): TrainerClaim {
  return decodeStored<TrainerClaim>(bytes, key, ({ epoch, holder }) => ({
    'an epoch': Number.isSafeInteger(epoch),
    'who holds the run': typeof holder === 'string',
  }));
}

/** `rollouts/…/chunk_k_of_n_from_G.json`: fates of the groups in a part of a chunk. */
export function playedPartIn(bytes: Uint8Array, key: string): PlayedPart {
  return decodeStored<PlayedPart>(bytes, key, ({ scored, filtered, ordinals, rollouts, tokens, ...more }) => ({
    'a reference to its scored groups, and their numbers as ranges': isRef(scored) && areRanges(ordinals),
    'which groups were kept, and how the others ended': isRecord(filtered) && areFiltered(filtered),
    'how many rollouts and tokens it has': isCount(rollouts) && isCount(tokens),
    'how long it took': [more['generateS'], more['scoreS']].every((seconds) => typeof seconds === 'number'),
    'an occupancy, or null': more['occupancy'] === null || typeof more['occupancy'] === 'number',
  }));
}

function areFiltered({ kept, ended, solved }: Record<string, unknown>): boolean {
  return (
    isRecord(kept) &&
    isRef(kept['scored']) &&
    isCount(kept['policyStep']) &&
    areRanges(kept['ordinals']) &&
    isRecord(ended) &&
    Object.values(ended).every(areRanges) &&
    isRecord(solved) &&
    ['all', 'none', 'some'].every((kind) => isCount(solved[kind]))
  );
}

export function isRef(value: unknown): value is ObjectRef {
  return isRecord(value) && typeof value['key'] === 'string' && typeof value['sha256'] === 'string';
}

export function isVersion(value: unknown): boolean {
  return (
    isRecord(value) &&
    isCount(value['step']) &&
    (value['replay'] === undefined || isCount(value['replay'])) &&
    typeof value['digest'] === 'string' &&
    typeof value['weights'] === 'string' &&
    isRef(value['file']) &&
    isRef(value['sums'])
  );
}

function isOrigin(value: unknown): boolean {
  return (
    isRecord(value) &&
    [value['run'], value['lineage'], value['sha256']].every((part) => typeof part === 'string') &&
    isCount(value['step'])
  );
}

function isState(state: Record<string, unknown>) {
  const { policy, reference, klBeta, curriculum, surplus, open = [], overrides, pendingEvals } = state;
  return (
    isVersion(policy) &&
    isVersion(reference) &&
    typeof klBeta === 'number' &&
    isRecord(curriculum) &&
    isCount(curriculum['nextOrdinal']) &&
    Array.isArray(surplus) &&
    surplus.every((kept) => isRecord(kept) && isRef(kept['scored']) && areRanges(kept['ordinals'])) &&
    Array.isArray(open) &&
    open.every(isOpenRound) &&
    isRecord(overrides) &&
    Array.isArray(pendingEvals) &&
    pendingEvals.every(isCount)
  );
}

/** Checks a round that was still being generated at the commit. */
function isOpenRound(round: unknown): boolean {
  if (!isRecord(round)) return false;
  const { step, first, last, leases, groups = '' } = round;
  return [step, first, last].every(isCount) && typeof leases === 'string' && areRanges(groups);
}

function areOutcomes({ issued, ended, pending }: Record<string, unknown>): boolean {
  return isRecord(ended) && [issued, pending, ...Object.values(ended)].every(areRanges);
}

function areRanges(text: unknown): boolean {
  try {
    return typeof text === 'string' && decodeRanges(text).length >= 0;
  } catch {
    return false; // not a range, or of more groups than fit into memory
  }
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && Number(value) >= 0;
}
