import { positionsOf } from '../../core/eval/chunks.ts';
import { exampleOrder } from '../../core/eval/example-order.ts';
import type { StoredEvaluation } from '../../core/eval/evaluation.ts';
import type { StoredRescore } from '../../core/eval/rescore.ts';
import { rolloutOfRow } from '../../core/eval/verifiers-results.ts';
import { resultRow } from '../../core/rl/rollout/results.ts';
import {
  type Example,
  isOutcome,
  isRewardedOutcome,
  type Rollout,
  type RolloutRow,
  type ScoredRollout,
} from '../../core/rl/rollout/rollout.ts';
import { withSystemPrompt } from '../../core/rl/rollout/system-prompt.ts';
import type { Environment } from '../../backends/environments/types.ts';
import { rowLike } from '../../store/objects.ts';
import { evaluationKeys, type ScoredExample, scoredExamples } from '../../runs/evaluations/evaluation-store.ts';
import { readJson, storeOf } from '../../runs/run-access.ts';
import { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import type { StoredGroup } from './stored-group.ts';

type OfEvaluation = Extract<StoredRescore['of'], { readonly kind: 'evaluation' }>;

/** Scored examples of one chunk of an evaluation, in their order. A chunk of it is in memory at a time. */
export async function* groupsOfEvaluation(
  { input, of }: { readonly input: StoredRescore['input']; readonly of: OfEvaluation },
  chunk: number,
  open: (environment: string) => Promise<Environment>,
): AsyncGenerator<StoredGroup> {
  if (input.subject.kind !== 'evaluation') throw new Error('the rollouts of a run are not in an evaluation');
  const { place } = input.subject;
  const evaluation = await readJson<StoredEvaluation>(place, of.spec);
  const { input: evaluated, examples, chunkExamples } = evaluation;
  const { rolloutsPerExample } = evaluated;
  const store = storeOf(place);
  const cut = { place, attempt: of.attempt, rolloutsPerExample, chunkExamples, examples };
  const scored = await scoredExamples(store, cut, chunk);
  const journals = await journalsOf(evaluated, of, chunk);
  const environment = await open(evaluated.environment.name);
  const order = exampleOrder(environment.evalDataset.length, evaluated.shuffleSeed, evaluated.skipExamples);
  const { systemPrompt: ref } = evaluated;
  const systemPrompt = ref && Buffer.from(await store.get(ref)).toString('utf8');
  const { from, to } = positionsOf(chunk, cut);
  for (let group = from; group < to; group++) {
    const found = scored.get(group);
    if (found === undefined) continue; // interrupted: this example was not evaluated
    const exampleId = order(group);
    const played = journals.flatMap((journal) => journal.of(group));
    yield storedGroup({ evaluated, found, played, exampleId, environment, systemPrompt });
  }
}

/** Rollouts of all attempts, and those that failed in the newest. */
function journalsOf(
  { results: place }: StoredEvaluation['input'],
  { attempt, spec }: OfEvaluation,
  chunk: number,
): Promise<RolloutJournal[]> {
  const own = evaluationKeys.ofAttempt(place, chunk, attempt);
  const below = [evaluationKeys.chunk(place, chunk), own, `${own}groups/`];
  return Promise.all(below.map((prefix) => RolloutJournal.open(storeOf(place), prefix, spec.sha256)));
}

interface GroupOf {
  readonly evaluated: StoredEvaluation['input'];
  readonly found: ScoredExample;
  readonly played: readonly Rollout[];
  readonly exampleId: number;
  readonly environment: Environment;
  readonly systemPrompt: string | undefined;
}

function storedGroup({ evaluated, found, played, exampleId, environment, systemPrompt }: GroupOf): StoredGroup {
  const { group, rows } = found;
  const unscored = rows.map((row, index): Rollout => rolloutOf(played, row, { group, index, exampleId }));
  const example = (): Promise<Example> =>
    Promise.resolve(withSystemPrompt(environment.evalDataset.at(exampleId), systemPrompt));
  return {
    lineage: '',
    step: null,
    environment: evaluated.environment.name,
    group,
    exampleId,
    dataset: 'evalDataset',
    isIndependent: evaluated.independentScoring,
    rolloutsPerExample: evaluated.rolloutsPerExample,
    rollouts: rows.map((row, index) => scoredAs(unscored[index]!, row)),
    unscored: ({ index }) => unscored[index]!,
    example,
    settle: (rollout) => Promise.resolve(rollout),
    rows: async (rescored, asked) => {
      const asSeen = await example();
      return rescored.map((rollout) => {
        const { index, record } = rollout;
        if (!asked.has(index)) return rows[index]!;
        const row = resultRow(rollout, { example: asSeen, record, tools: environment.tools, place: { ...evaluated.about } }); // prettier-ignore
        return rowLike(row, record);
      });
    },
  };
}

/** As it was played: from the journal, where one that carries a reward comes first; else from its row, as of vf-eval. */
function rolloutOf(
  played: readonly Rollout[],
  row: RolloutRow,
  place: Pick<Rollout, 'group' | 'index' | 'exampleId'>,
): Rollout {
  const own = played.filter(({ index }) => index === place.index);
  const found = own.find(({ outcome }) => isRewardedOutcome(outcome)) ?? own[0] ?? rolloutOfRow(row, place);
  const { judged: _, ...rollout } = found;
  return rollout;
}

/** With the reward that its row says. */
function scoredAs(rollout: Rollout, row: RolloutRow): ScoredRollout {
  const { reward, metrics, ratchet, long_error_chain: chain } = row;
  const said = typeof ratchet === 'object' && ratchet !== null && !Array.isArray(ratchet) ? ratchet['outcome'] : undefined; // prettier-ignore
  const outcome = isOutcome(said) ? said : rollout.outcome;
  const error = typeof chain === 'string' ? { error: chain } : {};
  return {
    ...rollout,
    ...error,
    outcome,
    reward: typeof reward === 'number' ? reward : null,
    metrics: (metrics ?? {}) as Record<string, number>,
  } as ScoredRollout;
}
