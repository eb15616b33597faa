import { layout } from '../runs/layout.ts';
import { teacherRowsAtOnce } from '../core/limits.ts';
import type { PackedRow } from '../core/rl/batch.ts';
import type { ObjectRef, RunHandle, TaughtBatch } from '../core/rl/run-state.ts';
import { decodeNumbers, encodeRows } from '../backends/store/objects.ts';
import { sha256 } from '../backends/store/file-store.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import type { PackedBatch } from './pack-batch.ts';
import { readJson, readRows, specOf, storeOf } from '../runs/run-access.ts';
import { openScorer, type TeacherDependencies } from '../backends/rollouts/teacher.ts';

/** A row of what a teacher said: aligned with the row's tokens, 0 where they do not count. */
type TaughtRow = readonly number[];

/**
 * What the teacher would have given each token of a packed batch, stored before the step is planned: training it again does the same
 * again. Rows are asked for in parts; a retry asks only for those that are missing, and whoever stores a part first decides.
 */
export const createAskTeacher =
  (dependencies: TeacherDependencies) =>
  (input: { readonly run: RunHandle; readonly step: number; readonly packed: ObjectRef }): Promise<TaughtBatch> =>
    withHeartbeat(
      (signal) => askTeacher(dependencies, input, signal),
      () => undefined,
    );

async function askTeacher(
  dependencies: TeacherDependencies,
  { run, step, packed }: { readonly run: RunHandle; readonly step: number; readonly packed: ObjectRef },
  signal: AbortSignal,
): Promise<TaughtBatch> {
  const startedAt = performance.now();
  const spec = await specOf(run);
  const store = storeOf(run);
  const { batch } = await readJson<PackedBatch>(run, packed);
  const samples = await readRows<PackedRow>(run, batch);
  const scorer = await openScorer(dependencies, spec);
  const key = (part: string): string => layout.taught(run.lineage, step, packed.sha256, part);
  const rows: TaughtRow[] = [];
  for (let first = 0; first < samples.length; first += teacherRowsAtOnce) {
    const part = key(`.part_${first}`);
    const asked = samples.slice(first, first + teacherRowsAtOnce);
    const known = await store.read(part);
    if (known) {
      rows.push(...decodeNumbers(known, part));
      continue;
    }
    const scored = await scorer.score(
      asked.map(({ tokenIds }) => tokenIds),
      signal,
    );
    const own = asked.map(({ lossMask }, r) =>
      lossMask.map((mask, t) => (mask === 0 ? 0 : requireFinite(scored[r]![t]!))),
    );
    const { bytes } = await store.putIfAbsent(part, encodeRows(own));
    rows.push(...decodeNumbers(bytes, part));
  }
  const { bytes } = await store.putIfAbsent(key(''), encodeRows(rows));
  return {
    logprobs: { key: key(''), sha256: sha256(bytes), bytes: bytes.byteLength, count: rows.length },
    teacher: scorer.name,
    kl: meanLead(samples, rows),
    seconds: (performance.now() - startedAt) / 1000,
  };
}

/**
 * Mean over tokens of log π − log π_T at the policy that sampled them: an estimate of KL(policy ‖ teacher), nats per token. Where
 * its server told the sampler's alone, log π is taken from that.
 */
function meanLead(samples: readonly PackedRow[], rows: readonly TaughtRow[]): number {
  let [sum, count] = [0, 0];
  for (const [r, { lossMask, behaviorLogprobs, samplingLogprobs }] of samples.entries()) {
    const told = behaviorLogprobs ?? samplingLogprobs;
    if (told === undefined) continue;
    for (const [t, mask] of lossMask.entries()) {
      if (mask === 0) continue;
      sum += told[t]! - rows[r]![t]!;
      count += 1;
    }
  }
  return count === 0 ? 0 : sum / count;
}

function requireFinite(logprob: number): number {
  if (Number.isFinite(logprob)) return logprob;
  throw new Error(`The teacher gave a token the log probability ${logprob}.`);
}
