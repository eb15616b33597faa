import type { ObjectRef, OptimizerState, PolicyVersion, RunHandle } from '../../core/rl/run-state.ts';
import { verifyVersion } from '../../store/version-files.ts';
import { layout } from '../layout.ts';
import { openOptimizer } from './optimizer-state.ts';
import { isRef, isVersion } from '../forms/record-shapes.ts';
import { storeOf } from '../run-access.ts';
import { decodeStored, encodeStored } from '../forms/stored-forms.ts';

/** Progress of the supervised warm-up; stored whole, so that a killed trainer loses one segment at most. */
export interface WarmUpState {
  readonly step: number;
  readonly policy: PolicyVersion;
  readonly optimizer: ObjectRef | null;
  /** Loss of the last step; null before the first. */
  readonly loss: number | null;
}

/** Parses the state that an earlier attempt stored; no digest covers the file. */
export function warmUpStateIn(bytes: Uint8Array, key: string): WarmUpState {
  return decodeStored<WarmUpState>(bytes, key, ({ step, policy, optimizer, loss }) => ({
    'a step and its policy': typeof step === 'number' && isVersion(policy),
    'a reference to its optimizer, or null': optimizer === null || isRef(optimizer),
    'a loss, or null': loss === null || typeof loss === 'number',
  }));
}

/** Stored state of that step; null when it has not been made. */
export async function storedWarmUp(run: RunHandle, step: number): Promise<WarmUpState | null> {
  const store = storeOf(run);
  const stored = await store.read(keyOf(step));
  return stored && warmUpStateIn(stored, store.uri + keyOf(step));
}

export async function storeWarmUp(run: RunHandle, state: WarmUpState): Promise<void> {
  await storeOf(run).put(keyOf(state.step), encodeStored(keyOf(state.step), state));
}

/** Folder of its weights on this machine, and its optimizer; their bytes may have changed since they were stored. */
export async function openWarmUp(
  run: RunHandle,
  { policy, optimizer }: WarmUpState,
): Promise<{ readonly folder: string; readonly optimizer: OptimizerState | null }> {
  const store = storeOf(run);
  await verifyVersion(store, policy, { sharesFolder: true }); // together with the optimizer's state
  return {
    folder: await store.localFolder(policy.weights),
    optimizer: optimizer && (await openOptimizer(store, optimizer)),
  };
}

function keyOf(step: number): string {
  return `${layout.warmUp(step)}state.json`;
}
