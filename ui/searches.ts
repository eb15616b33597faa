import { unifiedDiff } from '../core/gepa/text-diff.ts';
import { RatchetError } from '../core/errors.ts';
import { orIfDamaged } from '../store/objects.ts';
import { layout, lineageOf, stepOf } from '../runs/layout.ts';
import { lineagesOf, type RunPlace, storeOf } from '../runs/run-access.ts';
import {
  frontsByExample,
  scoreOf,
  searchFiles,
  type SearchResults,
  searchResultsIn,
} from '../runs/searches/search-results.ts';
import type { ListedSearch, SearchAnswer, SearchesAnswer } from './answers.ts';

/** Searches whose parsed files are cached. */
const searchesHeld = 64;
const textMax = 100_000;

interface Known {
  /** Sizes of its files in bytes: a change means that the search has continued. */
  readonly size: string;
  readonly results: SearchResults;
}

/** The searches for better prompts that branched off a run, from the files that they leave in its folder. */
export class Searches {
  readonly #place: RunPlace;
  readonly #known = new Map<string, Known>();

  constructor(place: RunPlace) {
    this.#place = place;
  }

  async list(): Promise<SearchesAnswer> {
    const listed: ListedSearch[] = [];
    const damaged: string[] = [];
    for (const lineage of await lineagesOf(this.#place)) {
      const keys = await storeOf(this.#place).list(layout.allPromptBranches(lineage));
      for (const key of keys.filter((one) => one.endsWith(`/${searchFiles.rows}`))) {
        const id = key.slice(0, -searchFiles.rows.length);
        await orIfDamaged(
          async () => {
            const results = await this.#read(id);
            if (results) listed.push(listedOf(id, results));
          },
          (why) => void damaged.push(why),
        );
      }
    }
    return { searches: listed.sort((a, b) => a.step - b.step || a.id.localeCompare(b.id)), damaged };
  }

  async one(id: string): Promise<SearchAnswer> {
    const isOfRun = (await lineagesOf(this.#place)).some((one) => id.startsWith(layout.allPromptBranches(one)));
    const results = isOfRun && !id.includes('..') ? await this.#read(id) : null;
    if (!results) throw new RatchetError('RunNotFound', `There is no search ${JSON.stringify(id)} of this run.`);
    const fronts = new Map(frontsByExample(results).map(({ candidate, examples }) => [candidate, examples.length]));
    const { candidates, best } = results;
    const [start] = candidates;
    return {
      ...listedOf(id, results),
      candidates: candidates.map((candidate, i) => {
        const parent = candidate.parents[0];
        const from = parent === undefined ? undefined : candidates[parent];
        return {
          parents: candidate.parents,
          score: scoreOf(candidate),
          scored: candidate.scores.filter((score) => score !== null).length,
          bestAt: fronts.get(i) ?? 0,
          isBest: i === best,
          prompt: candidate.prompt.slice(0, textMax),
          fromParent: from === undefined ? '' : diffOf(from.prompt, candidate.prompt, `candidate ${parent}`, i),
          fromStart: parent === 0 || start === undefined ? '' : diffOf(start.prompt, candidate.prompt, 'the start', i),
        };
      }),
    };
  }

  async #read(id: string): Promise<SearchResults | null> {
    const store = storeOf(this.#place);
    const [rows, about, trial] = await Promise.all(
      [searchFiles.rows, searchFiles.about, searchFiles.trial].map((name) => store.read(id + name)),
    );
    const size = [rows, about, trial].map((file) => file?.byteLength ?? 0).join();
    const known = this.#known.get(id);
    if (known?.size === size) return known.results;
    const results = searchResultsIn({ rows: rows!, about: about!, trial: trial! }, store.uri + id);
    if (results === null) return null;
    this.#known.set(id, { size, results });
    if (this.#known.size > searchesHeld) this.#known.delete(this.#known.keys().next().value!);
    return results;
  }
}

function listedOf(id: string, results: SearchResults): ListedSearch {
  const { environment, model, reflectionModel, best, calls, maxCalls, stopReason, comparison, trial } = results;
  return {
    id,
    environment,
    lineage: lineageOf(id),
    step: stepOf(id.replace(/\/$/, '')) ?? 0,
    model,
    reflectionModel,
    best,
    bestScore: scoreOf(results.candidates[best]!),
    startScore: scoreOf(results.candidates[0]!),
    count: results.candidates.length,
    examples: results.candidates[0]!.scores.length,
    calls,
    maxCalls,
    stopReason,
    comparison,
    trial,
  };
}

function diffOf(before: string, after: string, from: string, candidate: number): string {
  return unifiedDiff(before, after, { from, to: `candidate ${candidate}` }).slice(0, textMax);
}
