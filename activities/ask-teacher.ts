import { layout } from '../runs/layout.ts';
import { teacherRowsAtOnce } from '../core/limits.ts';
import { learnsFromTeacher, type PackedRow } from '../core/rl/learning/batch.ts';
import type { KeptGroups, ObjectRef, PolicyVersion, RunHandle, TaughtBatch, TaughtRows } from '../core/rl/run-state.ts';
import { damaged } from '../store/objects.ts';
import { encodeStored } from '../runs/forms/stored-forms.ts';
import { sha256 } from '../store/file-store.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { decodeTaught, encodeTaught, numbersOf } from '../runs/rollouts/batch-parts.ts';
import { openBatch } from '../runs/rollouts/batches.ts';
import { specOf, storeOf } from '../runs/run-access.ts';
import { openSelfScorer } from '../play/teacher/self-teacher.ts';
import { openScorer, type Scorer, type TeacherDependencies } from '../play/teacher/teacher.ts';
import type { OpenTokenizer } from '../play/policy/policy-tokenizer.ts';

interface AskInput {
  readonly run: RunHandle;
  readonly step: number;
  readonly packed: ObjectRef;
  /** Set for a policy that is its own teacher: the groups of the batch, and the newest version its servers hold. */
  readonly trained?: readonly KeptGroups[];
  readonly policy?: PolicyVersion;
}

type Dependencies = TeacherDependencies & { readonly tokenizer: OpenTokenizer };

/**
 * Teacher's log probabilities for each token of a packed batch, stored before the step is planned, so that training it
 * again gives the same. Rows are requested in parts; a retry requests only missing parts, and the first writer of a
 * part wins.
 */
export const createAskTeacher =
  (dependencies: Dependencies) =>
  (input: AskInput): Promise<TaughtBatch> =>
    withHeartbeat(
      (signal) => askTeacher(dependencies, input, signal),
      () => undefined,
    );

async function askTeacher(
  dependencies: Dependencies,
  { run, step, packed, trained, policy }: AskInput,
  signal: AbortSignal,
): Promise<TaughtBatch> {
  const startedAt = performance.now();
  const spec = await specOf(run);
  const store = storeOf(run);
  const batch = await openBatch(run, { packed });
  const scorer =
    spec.teacher?.demonstration && trained && policy
      ? await openSelfScorer(dependencies, { run, spec, trained, policy })
      : await openScorer(dependencies, spec);
  const { before } = scorer;
  if (before && before.length !== batch.rows.length)
    throw new Error(`the batch has ${batch.rows.length} rows, and its groups make ${before.length}`);
  const isTaught = (row: Pick<PackedRow, 'objective'>): boolean => learnsFromTeacher(spec, row);
  const parts: ObjectRef[] = [];
  const lead = new MeanLead();
  for (let first = 0; first < batch.rows.length; first += teacherRowsAtOnce) {
    const key = layout.taughtPart(run.lineage, step, packed.sha256, first);
    const places = [...batch.rows.keys()].slice(first, first + teacherRowsAtOnce);
    const samples = await batch.read(places);
    const bytes =
      (await store.read(key)) ??
      (await store.putIfAbsent(key, await asked(scorer, { samples, places, isTaught }, signal))).bytes;
    const rows = decodeTaught(bytes, store.uri + key);
    for (const [r, sample] of samples.entries()) {
      const taught = requireRow(rows[r], sample, store.uri + key);
      if (isTaught(sample)) lead.add(sample, taught);
    }
    parts.push({ key, sha256: sha256(bytes), bytes: bytes.byteLength, count: rows.length });
  }
  const key = layout.taught(run.lineage, step, packed.sha256);
  const taught: TaughtRows = { parts, rowsOfPart: teacherRowsAtOnce };
  const logprobs = { ...(await store.put(key, encodeStored(key, taught))), count: batch.rows.length };
  return { logprobs, teacher: scorer.name, kl: lead.mean, seconds: (performance.now() - startedAt) / 1000 };
}

async function asked(
  scorer: Scorer,
  of: {
    readonly samples: readonly PackedRow[];
    readonly places: readonly number[];
    readonly isTaught: (sample: PackedRow) => boolean;
  },
  signal: AbortSignal,
): Promise<Uint8Array> {
  const { samples, places, isTaught } = of;
  const hints = places.map((row) => scorer.before?.[row] ?? []);
  const taught = [...samples.keys()].filter((r) => isTaught(samples[r]!));
  const whole =
    taught.length === 0
      ? []
      : await scorer.score(
          taught.map((r) => [...hints[r]!, ...samples[r]!.tokenIds]),
          signal,
        );
  const scored = new Map(taught.map((r, i) => [r, whole[i]!.slice(hints[r]!.length)]));
  return encodeTaught(
    samples.map(({ lossMask }, r) => {
      const trainedAt = [...lossMask.keys()].filter((t) => lossMask[t] !== 0);
      const logprobs = scored.get(r) ?? lossMask.map(() => 0);
      for (const t of trainedAt) requireFinite(logprobs[t]!);
      return numbersOf(logprobs, trainedAt);
    }),
  );
}

/**
 * Mean over tokens of log π − log π_T at the policy that sampled them: an estimate of KL(policy ‖ teacher) in nats per
 * token. If the server reported only the sampler's log probabilities, they stand in for log π.
 */
class MeanLead {
  #sum = 0;
  #count = 0;

  get mean(): number {
    return this.#count === 0 ? 0 : this.#sum / this.#count;
  }

  add({ lossMask, behaviorLogprobs, samplingLogprobs }: PackedRow, taught: ArrayLike<number>): void {
    const told = behaviorLogprobs ?? samplingLogprobs;
    if (told === undefined) return;
    let next = 0;
    for (const [t, mask] of lossMask.entries()) {
      if (mask === 0) continue;
      this.#sum += told[t]! - taught[next++]!;
      this.#count += 1;
    }
  }
}

function requireRow(row: ArrayLike<number> | undefined, { lossMask }: PackedRow, where: string): ArrayLike<number> {
  const counted = lossMask.filter((mask) => mask !== 0).length;
  if (row && row.length === counted) return row;
  throw damaged(where, `expected ${counted} numbers of a row, found ${row?.length ?? 'none'}`);
}

function requireFinite(logprob: number): void {
  if (!Number.isFinite(logprob)) throw new Error(`The teacher gave a token the log probability ${logprob}.`);
}
