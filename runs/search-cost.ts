import { decodeStored } from './stored-forms.ts';
import type { EvaluationPlace } from '../core/eval/evaluation.ts';
import type { StoredPromptSearch } from '../core/gepa/prompt-search.ts';
import { costMetrics } from '../core/rl/cost.ts';
import { AnswerJournal } from './answer-journal.ts';
import { lineageOf, stepOf } from './layout.ts';
import { appendMetrics } from './metrics.ts';
import { specOf, storeOf } from './run-access.ts';
import { searchKeys } from './search-store.ts';

/** How ids of requests begin that try what a search found on a newer version. */
export const trialRequest = 'trial.';

/**
 * What a search that branched off a run has taken, or the trial of what it found, as a row of the run's metrics; from stored answers, so twice is
 * once. A search of nobody's run has no such row.
 */
export async function recordSearchCost(place: EvaluationPlace, of: 'search' | 'trial'): Promise<void> {
  const store = storeOf(place);
  const key = searchKeys.search(place);
  const bytes = await store.read(key);
  const stored = bytes && decodeStored<StoredPromptSearch>(bytes, key);
  const { model, environments, isBranch } = stored?.input ?? {};
  const step = stepOf(place.prefix.replace(/\/$/, ''));
  if (!stored || isBranch !== true || model?.kind !== 'version' || step === null) return;
  const journal = await AnswerJournal.open(place, stored);
  const used = journal.used((request) => request.startsWith(trialRequest) === (of === 'trial'));
  const { cost } = await specOf(model.run);
  const name = environments!.map((one) => one.name).join('+');
  const metrics = costMetrics(used, cost, `${of}/${name}/`);
  if (Object.keys(metrics).length > 0)
    await appendMetrics(store, { step, lineage: lineageOf(place.prefix), ...metrics });
}
