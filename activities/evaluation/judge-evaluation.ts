import { fileURLToPath } from 'node:url';
import type { EvaluationPlace, EvaluationResult, StoredEvaluation } from '../../core/eval/evaluation.ts';
import { rewardRow } from '../../core/eval/measured-row.ts';
import { judgeAgainst, referencesAmong, type Regression, rewardsByExample } from '../../core/eval/regression.ts';
import { differencesOf } from '../../core/eval/same-evaluation.ts';
import { layout, stepOf } from '../../runs/layout.ts';
import type { RolloutRow } from '../../core/rl/rollout/rollout.ts';
import type { PolicyVersion, RunHandle } from '../../core/rl/run-state.ts';
import { evaluationsIn, placeIn } from '../../load/evaluations/evaluation-folders.ts';
import { requireStorePlace } from '../../host/trusted-files.ts';
import { decodeRows } from '../../store/objects.ts';
import { decodeStored } from '../../runs/forms/stored-forms.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import { storeOf, stretchesOf } from '../../runs/run-access.ts';
import { evaluationKeys, newestAttempt } from '../../runs/evaluations/evaluation-store.ts';

interface JudgeInput {
  readonly result: EvaluationResult;
  /** The evaluated version; null = the model is always the same, and only its server may have changed. */
  readonly version: { readonly run: RunHandle; readonly policy: PolicyVersion } | null;
  /** Evaluations judged together with this one, including itself; one when missing. */
  readonly environments?: number;
}

/** Compares an evaluation with the best earlier one of the same settings; null without one. */
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

/** Compares an evaluation of a file's model with the evaluations beside it. */
async function regressionInFolder(
  { place, environment, model }: EvaluationResult,
  environments: number,
): Promise<Regression | null> {
  if (!place.store.startsWith('file:')) return null;
  const folder = fileURLToPath(place.store);
  await requireStorePlace(folder); // siblings are read by name
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
  /** Number of environments evaluated together. */
  readonly environments: number;
}

async function judge(
  place: EvaluationPlace,
  step: number,
  candidates: readonly Candidate[],
  { key, mayDiffer, environments }: JudgedBy,
): Promise<Regression | null> {
  const own = (await newestAttempt(place))?.evaluation ?? null;
  if (own === null) return null;
  const known: (Candidate & { readonly reward: number })[] = [];
  for (const candidate of candidates) {
    const stored = (await newestAttempt(candidate.place))?.evaluation ?? null;
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

/** Whether the two differ only in what they may, and in the number of examples. */
function isComparable(before: StoredEvaluation, now: StoredEvaluation, mayDiffer: readonly string[]): boolean {
  const differences = differencesOf(before.input, now.input, { before: 0, now: 0 });
  return differences.every((line) => mayDiffer.some((name) => line.startsWith(`${name} `)));
}

/** Variant in the name of the folder, which distinguishes evaluations of one version: '' for `…/step_12.r1/`. */
function variantOf(prefix: string): string {
  return /\/step_\d+(?:\.r\d+)?(?:\.([^/]+))?\/$/.exec(prefix)?.[1] ?? '';
}

/** null when that attempt did not end. */
async function resultOf(place: EvaluationPlace, attempt: number): Promise<EvaluationResult | null> {
  const key = evaluationKeys.summary(place, attempt);
  const bytes = await storeOf(place).read(key);
  return bytes && decodeStored<EvaluationResult>(bytes, key);
}

/** Rows with answers and rewards, from the results that people read. */
export async function judgedRows(place: EvaluationPlace): Promise<RolloutRow[]> {
  const key = evaluationKeys.results(place);
  return decodeRows<RolloutRow>((await storeOf(place).read(key)) ?? Buffer.of(), key);
}
