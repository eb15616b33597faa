import { fileURLToPath } from 'node:url';
import type { EvaluationPlace, EvaluationResult, StoredEvaluation } from '../../core/eval/evaluation.ts';
import { rewardRow } from '../../core/eval/measured-row.ts';
import { judgeAgainst, referencesAmong, type Regression, rewardsByExample } from '../../core/eval/regression.ts';
import { differencesOf } from '../../core/eval/same-evaluation.ts';
import { layout, stepOf } from '../../runs/layout.ts';
import type { RolloutRow } from '../../core/rl/rollout.ts';
import type { PolicyVersion, RunHandle } from '../../core/rl/run-state.ts';
import { evaluationsIn, placeIn } from '../../backends/configs/evaluation-folders.ts';
import { requireStorePlace } from '../../engine/trusted-files.ts';
import { decodeRows } from '../../backends/store/objects.ts';
import { decodeStored } from '../../runs/stored-forms.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import { storeOf, stretchesOf } from '../../runs/run-access.ts';
import { evaluationKeys } from '../../runs/evaluation-store.ts';

interface JudgeInput {
  readonly result: EvaluationResult;
  /** The version that was evaluated; null = the model is the same each time, and what may have changed is what serves it. */
  readonly version: { readonly run: RunHandle; readonly policy: PolicyVersion } | null;
  /** Evaluations that are judged beside this one, itself included; one when missing. */
  readonly environments?: number;
}

/** Holds an evaluation against the best before it that was carried out in the same way; null where there is none. */
export async function judgeEvaluation({ result, version, environments = 1 }: JudgeInput): Promise<Regression | null> {
  return withHeartbeat(async () =>
    version === null
      ? regressionInFolder(result, environments)
      : regressionOf(version.run, version.policy, result, environments),
  );
}

/** Among the versions before this one that led to it. */
export async function regressionOf(
  run: RunHandle,
  policy: PolicyVersion,
  { environment, place }: EvaluationResult,
  environments: number,
): Promise<Regression | null> {
  const variant = variantOf(place.prefix);
  const candidates: Candidate[] = [];
  for (const { lineage, upTo } of await stretchesOf(run)) {
    const all = layout.evaluations(lineage, environment, run.name);
    const keys = await storeOf(run).list(all);
    for (const prefix of new Set(keys.map((key) => key.slice(0, key.indexOf('/', all.length) + 1)))) {
      const step = stepOf(prefix);
      if (step === null || step > upTo || step >= policy.step || variantOf(prefix) !== variant) continue;
      candidates.push({ place: { ...place, prefix }, step, name: `v${step}` });
    }
  }
  const key = [run.name, environment];
  return judge(place, policy.step, candidates, { key, mayDiffer: ['policy'], environments });
}

/** Of a file's model: among the evaluations that lie beside it. */
async function regressionInFolder(
  { place, environment, model }: EvaluationResult,
  environments: number,
): Promise<Regression | null> {
  if (!place.store.startsWith('file:')) return null;
  const folder = fileURLToPath(place.store);
  await requireStorePlace(folder); // what lies beside is read by name
  const others = (await evaluationsIn(folder)).filter(({ id }) => id !== place.name);
  const candidates = others.map(({ id }, i) => ({ place: placeIn(folder, id), step: i, name: id }));
  return judge(place, others.length, candidates, { key: [model, environment], mayDiffer: [], environments });
}

interface Candidate {
  readonly place: EvaluationPlace;
  readonly step: number;
  readonly name: string;
}

interface JudgedBy {
  readonly key: readonly string[];
  readonly mayDiffer: readonly string[];
  /** Judged at once. */
  readonly environments: number;
}

async function judge(
  place: EvaluationPlace,
  step: number,
  candidates: readonly Candidate[],
  { key, mayDiffer, environments }: JudgedBy,
): Promise<Regression | null> {
  const own = await newestAttempt(place);
  if (own === null) return null;
  const known: (Candidate & { readonly reward: number })[] = [];
  for (const candidate of candidates) {
    const stored = await newestAttempt(candidate.place);
    if (stored === null || !isComparable(stored, own, mayDiffer)) continue;
    const reward = (await resultOf(candidate.place, stored.attempt))?.avgReward ?? null;
    if (reward !== null) known.push({ ...candidate, reward });
  }
  const references = referencesAmong(known);
  if (references === null) return null;
  const rewards = async (at: EvaluationPlace) => rewardsByExample((await judgedRows(at)).map(rewardRow));
  const withRewards = async (one: (typeof known)[number]) => ({ ...one, rewards: await rewards(one.place) });
  const best = await withRewards(references.best);
  const last = references.last === references.best ? best : await withRewards(references.last);
  const window: Awaited<ReturnType<typeof withRewards>>[] = [];
  for (const one of references.window) window.push(one === references.best ? best : await withRewards(one));
  const { count } = references;
  return judgeAgainst({ step, rewards: await rewards(place) }, { best, last, window, count }, { key, environments });
}

/** Whether the two differ in nothing but what they may, and the number of examples. */
function isComparable(before: StoredEvaluation, now: StoredEvaluation, mayDiffer: readonly string[]): boolean {
  const differences = differencesOf(before.input, now.input, { before: 0, now: 0 });
  return differences.every((line) => mayDiffer.some((name) => line.startsWith(`${name} `)));
}

/** What tells evaluations of one version apart, in the name of their folder: '' for `…/step_12.r1/`. */
function variantOf(prefix: string): string {
  return /\/step_\d+(?:\.r\d+)?(?:\.([^/]+))?\/$/.exec(prefix)?.[1] ?? '';
}

async function newestAttempt(place: EvaluationPlace): Promise<StoredEvaluation | null> {
  const attempts = evaluationKeys.attempts(place);
  const numbers = (await storeOf(place).list(attempts)).map((key) => Number.parseInt(key.slice(attempts.length), 10));
  if (numbers.length === 0) return null;
  const key = evaluationKeys.attempt(place, Math.max(...numbers));
  const bytes = await storeOf(place).read(key);
  return bytes && decodeStored<StoredEvaluation>(bytes, key);
}

/** Null where that attempt was not brought to its end. */
async function resultOf(place: EvaluationPlace, attempt: number): Promise<EvaluationResult | null> {
  const key = evaluationKeys.summary(place, attempt);
  const bytes = await storeOf(place).read(key);
  return bytes && decodeStored<EvaluationResult>(bytes, key);
}

/** What was said and what it was given for it, as people read it. */
export async function judgedRows(place: EvaluationPlace): Promise<RolloutRow[]> {
  const key = evaluationKeys.results(place);
  return decodeRows<RolloutRow>((await storeOf(place).read(key)) ?? Buffer.of(), key);
}
