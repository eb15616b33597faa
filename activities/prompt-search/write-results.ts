import { besideStart } from '../../core/gepa/figures.ts';
import { asOneText, systemPrompt } from '../../core/gepa/prompt-parts.ts';
import type {
  HeldOutScores,
  PromptSearchHandle,
  PromptSearchResult,
  StoredPromptSearch,
} from '../../core/gepa/prompt-search.ts';
import {
  candidateRows,
  frontierRows,
  gepaMetadata,
  type ToldCandidate,
  treeDocument,
} from '../../core/gepa/results.ts';
import type { Candidate, SearchResult } from '../../core/gepa/search-state.ts';
import { linkNewestSearch } from '../../load/searches/newest-search.ts';
import { sha256 } from '../../store/file-store.ts';
import { encodeJson, encodeRows } from '../../store/objects.ts';
import { decodeStored, encodeStored } from '../../runs/forms/stored-forms.ts';
import { withHeartbeat } from '../around/heartbeat.ts';
import { storeOf } from '../../runs/run-access.ts';
import { AnswerJournal } from '../../runs/rollouts/answer-journal.ts';
import { recordSearchCost } from '../../runs/searches/search-cost.ts';
import { searchKeys, storedSearch } from '../../runs/searches/search-store.ts';

interface WritePromptsInput {
  readonly handle: PromptSearchHandle;
  readonly result: SearchResult;
  readonly comparison: HeldOutScores | null;
  readonly seconds: number;
}

/** Writes the state of a search, for people who look into its folder. */
export const createWritePrompts =
  () =>
  async (input: WritePromptsInput): Promise<void> =>
    withHeartbeat(async () => {
      await writeFiles(input);
    });

interface ClosePromptSearchInput extends WritePromptsInput {
  readonly iterations: number;
  readonly givenUp: number;
  readonly failed: number;
}

/** Writes the final results of a search. Idempotent: the first close wins. */
export const createClosePromptSearch =
  () =>
  async (input: ClosePromptSearchInput): Promise<PromptSearchResult> =>
    withHeartbeat(async () => {
      const { handle, result, comparison, seconds, iterations, givenUp, failed } = input;
      const { place, settings } = handle;
      const store = storeOf(place);
      const { candidates, best } = result;
      const found = candidates[best];
      const beside = found && besideStart(candidates, found);
      const summary: PromptSearchResult = {
        environment: handle.environment,
        model: handle.model,
        reflectionModel: handle.reflectionModel,
        id: place.name,
        place,
        folder: handle.folder,
        best,
        bestPrompt: await writeFiles(input),
        bestScore: result.score,
        startScore: beside?.start ?? null,
        startCoverage: beside?.examples ?? 0,
        bestCoverage: found ? scoredOf(found) : 0,
        isImproved: (beside?.other ?? -Infinity) > (beside?.start ?? Infinity),
        candidates: candidates.length,
        calls: result.calls,
        maxCalls: settings.maxCalls,
        reflections: result.reflections,
        iterations,
        givenUp,
        failed,
        stopReason: result.stopReason ?? 'asked',
        comparison,
        seconds,
      };
      await recordSearchCost(place, 'search');
      const key = searchKeys.summary(place);
      const { bytes } = await store.putIfAbsent(key, encodeStored(key, summary));
      return decodeStored<PromptSearchResult>(bytes, key);
    });

function scoredOf({ scores }: Candidate): number {
  return scores.filter((score) => score !== null).length;
}

/** Names that other programs use for the file with the best prompt. */
const promptFiles = ['best_prompt.txt', 'system_prompt.txt', 'best_system_prompt.txt'] as const;

async function writeFiles({ handle, result, comparison, seconds }: WritePromptsInput) {
  const { place } = handle;
  const stored = await storedSearch(handle);
  const { input } = stored;
  if (result.candidates.length === 0) return null;
  const store = storeOf(place);
  const told = await tellAll(handle, stored, result);
  const { best } = result;
  const { texts } = told[best]!;
  const whole = Buffer.from(told[best]!.prompt);
  const names = input.savesResults ? promptFiles : [promptFiles[0]];
  const isOne = Object.keys(texts).length === 1;
  const put = (name: string, bytes: Uint8Array) => store.put(`${place.prefix}${name}`, bytes);
  const [ref] = await Promise.all([
    put(names[0], whole),
    // Those names mean a system prompt: of several parts only that one is written, if there is one.
    ...names.slice(1).flatMap((name) => {
      const text = isOne ? whole : texts[systemPrompt] === undefined ? null : Buffer.from(texts[systemPrompt]);
      return text === null ? [] : [put(name, text)];
    }),
    ...(isOne ? [] : [put('best_components.json', encodeJson(texts))]),
    ...(input.savesResults
      ? [
          put('results.jsonl', encodeRows(candidateRows(told, best))),
          put('pareto_frontier.jsonl', encodeRows(frontierRows(told))),
          put('candidates.json', encodeJson(told.map(({ texts }) => texts))),
          put('candidate_tree.md', Buffer.from(treeDocument(told, best))),
        ]
      : []),
  ]);
  if (input.savesResults) {
    const { calls, reflections, stopReason } = result;
    const metadata = gepaMetadata({
      input,
      candidates: told,
      best,
      calls,
      reflections,
      stopReason,
      comparison,
      seconds,
      completedAt: new Date().toISOString(),
    });
    await put('metadata.json', encodeJson(metadata));
    await linkNewestSearch(place);
  }
  return ref;
}

async function tellAll(
  { place }: PromptSearchHandle,
  stored: StoredPromptSearch,
  { candidates }: SearchResult,
): Promise<ToldCandidate[]> {
  const journal = await AnswerJournal.open(place, stored);
  return candidates.map(({ texts: names, parents, scores, callsBefore }) => {
    const texts = journal.texts(names);
    const prompt = asOneText(texts);
    return { texts, prompt, sha256: sha256(Buffer.from(prompt)), parents, scores, callsBefore };
  });
}
