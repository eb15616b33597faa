import { bootstrapMean } from '../../core/eval/bootstrap.ts';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import { type AskedRollouts, compareScores } from '../../core/gepa/leases.ts';
import type {
  OpenedTrial,
  PromptSearchHandle,
  PromptTrial,
  StoredPromptSearch,
} from '../../core/gepa/prompt-search.ts';
import { systemPrompt } from '../../core/gepa/prompt-parts.ts';
import { RatchetError } from '../../core/errors.ts';
import { layout } from '../../runs/layout.ts';
import { versionName } from '../../core/names.ts';
import type { ObjectRef, PolicyVersion } from '../../core/rl/run-state.ts';
import { decodeStored, encodeStored } from '../../runs/forms/stored-forms.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import { storeOf } from '../../runs/run-access.ts';
import { AnswerJournal } from '../../runs/rollouts/answer-journal.ts';
import { recordSearchCost, trialRequest } from '../../runs/searches/search-cost.ts';
import { handleOf, searchKeys, textName } from '../../runs/searches/search-store.ts';

export interface TrialInput {
  /** Place of the search that found it. */
  readonly place: EvaluationPlace;
  readonly prompt: ObjectRef;
  readonly policy: PolicyVersion;
}

interface OpenDependencies {
  readonly countRolloutWorkers: () => Promise<number>;
}

/** Requests of a trial, so that its rollouts can be leased. Only reads. */
export const createOpenTrial =
  ({ countRolloutWorkers }: OpenDependencies) =>
  async ({ place, prompt, policy }: TrialInput): Promise<OpenedTrial> =>
    withHeartbeat(async () => {
      const { handle, stored } = await reopened(place);
      const text = await storeOf(place).get(prompt);
      const workers = await countRolloutWorkers().catch(() => 1);
      return { handle: { ...handle, workers }, asked: trialOf(stored, nameOf(text), policy) };
    });

/**
 * Scores the winner of a branch and the prompt it began with, on another version than the one it was found with, and on
 * examples that the branch has not seen, with the same random numbers. Stored rollouts are not generated again.
 */
export async function recordTrial({ place, prompt, policy }: TrialInput): Promise<PromptTrial> {
  return withHeartbeat(async () => {
    const { stored } = await reopened(place);
    const store = storeOf(place);
    const text = await store.get(prompt);
    const kept = await store.put(layout.prompt(prompt.sha256), text);
    const name = nameOf(text);
    const journal = await AnswerJournal.open(place, stored);
    const [before, after] = trialOf(stored, name, policy).map(({ id, examples }) =>
      examples.map((index) => journal.scoredRow(id, index).reward),
    );
    const differences = before!.flatMap((was, i) => (was === null || after![i] == null ? [] : [after![i] - was]));
    const key = [stored.input.seed, 'prompt', name, policy.digest];
    const difference = differences.length === 0 ? null : bootstrapMean(differences, { key });
    const trial = { prompt: kept, ...compareScores(before!, after!), difference };
    await recordSearchCost(place, 'trial');
    const trialKey = `${place.prefix}trial.json`;
    await store.put(trialKey, encodeStored(trialKey, { ...trial, version: versionName(policy) }));
    return trial;
  });
}

/** Requests for the prompt in use and for the winner, on the same examples. */
function trialOf({ input, start, test }: StoredPromptSearch, winner: string, policy: PolicyVersion): AskedRollouts[] {
  const ask = (id: string, texts: AskedRollouts['texts']): AskedRollouts => ({
    id: `${trialRequest}${versionName(policy)}.${id}`,
    texts,
    set: 'test',
    keepsTraces: false,
    examples: test.map((_, position) => position),
  });
  // An environment's own prompts may differ from example to example.
  return [ask('current', input.startPrompt ? start : null), ask(winner, { [systemPrompt]: winner })];
}

function nameOf(text: Uint8Array): string {
  return textName(Buffer.from(text).toString('utf8'));
}

/** A search that was opened before, as its activities know it. */
async function reopened(place: EvaluationPlace): Promise<{ handle: PromptSearchHandle; stored: StoredPromptSearch }> {
  const store = storeOf(place);
  const key = searchKeys.search(place);
  const bytes = await store.read(key);
  if (!bytes)
    throw new RatchetError(
      'CheckpointDamaged',
      `${store.uri}${key} is missing: the branch that found the prompt cannot be told from it.`,
    );
  const stored = decodeStored<StoredPromptSearch>(bytes, key);
  return { stored, handle: { ...handleOf(place, { key, bytes, stored }), numTest: stored.test.length } };
}
