import { average } from '../../core/gepa/fronts.ts';
import { decodeJson, decodeRows, isRecord, type Shape } from '../../store/objects.ts';
import { decodeStored } from '../forms/stored-forms.ts';

/** Files of a search's folder, ours or verifiers' own. */
export const searchFiles = { rows: 'results.jsonl', about: 'metadata.json', trial: 'trial.json' } as const;

/** A candidate as its row of `results.jsonl` tells it. */
interface ShownCandidate {
  readonly prompt: string;
  readonly parents: readonly number[];
  /** Indexed by validation example; null = not scored. */
  readonly scores: readonly (number | null)[];
}

/** A search by Ratchet or verifiers, read from its folder. */
export interface SearchResults {
  readonly environment: string;
  readonly model: string;
  readonly reflectionModel: string;
  readonly best: number;
  readonly calls: number | null;
  readonly maxCalls: number | null;
  /** null when none is recorded: the search is under way, or another program began it. */
  readonly stopReason: string | null;
  readonly comparison: {
    readonly examples: number;
    readonly before: number | null;
    readonly after: number | null;
  } | null;
  /** Trial of a search that a run branched off: winner and prompt in use on the newest version of its run. */
  readonly trial: (NonNullable<SearchResults['comparison']> & { readonly version: string }) | null;
  readonly candidates: readonly ShownCandidate[];
}

/** `where` = the folder, for messages. null without candidates. Throws for unreadable files, with file and line. */
export function searchResultsIn(
  files: Readonly<Record<keyof typeof searchFiles, Uint8Array | null>>,
  where: string,
): SearchResults | null {
  if (!files.rows) return null;
  const infos = decodeRows<{ readonly info?: unknown }>(files.rows, where + searchFiles.rows, rowShape)
    .map(({ info }) => info)
    .filter(isCandidate);
  if (infos.length === 0) return null;
  const metadata = files.about
    ? decodeJson<Record<string, unknown>>(files.about, where + searchFiles.about, metadataShape)
    : {};
  const config = asRecord(metadata['config']);
  const own = asRecord(metadata['ratchet']);
  const size = Math.max(...infos.flatMap(({ val_subscores: scores = {} }) => Object.keys(scores).map(Number)), -1) + 1;
  const best = infos.findIndex((info) => info.is_best === true);
  return {
    environment: textIn(metadata['env_id']),
    model: textIn(metadata['model']),
    reflectionModel: textIn(metadata['reflection_model']),
    best: Math.max(0, best),
    calls: numberIn(metadata['total_metric_calls']),
    maxCalls: numberIn(config['max_metric_calls']),
    stopReason: typeof own['stop_reason'] === 'string' ? own['stop_reason'] : null,
    comparison: (own['comparison'] as SearchResults['comparison'] | undefined) ?? null,
    trial: files.trial ? decodeStored(files.trial, where + searchFiles.trial, trialShape) : null,
    candidates: infos.map(
      ({ system_prompt: prompt, parent_candidate_idxs: parents = [], val_subscores: scores = {} }) => ({
        prompt: textIn(prompt),
        parents,
        scores: Array.from({ length: size }, (_, i) => numberIn(scores[String(i)])),
      }),
    ),
  };
}

/**
 * Best candidates for each validation example, ordered by how many examples they are best at: the Pareto front over
 * examples.
 */
export function frontsByExample({
  candidates,
}: Pick<SearchResults, 'candidates'>): { readonly candidate: number; readonly examples: readonly number[] }[] {
  const size = candidates[0]?.scores.length ?? 0;
  const at = candidates.map(() => [] as number[]);
  for (let example = 0; example < size; example++) {
    const scores = candidates.map(({ scores: own }) => own[example] ?? -Infinity);
    const best = Math.max(...scores);
    if (best === -Infinity) continue;
    for (const [i, score] of scores.entries()) if (score === best) at[i]!.push(example);
  }
  return at
    .map((examples, candidate) => ({ candidate, examples }))
    .filter(({ examples }) => examples.length > 0)
    .sort((a, b) => b.examples.length - a.examples.length || a.candidate - b.candidate);
}

/** Mean over the examples that it was scored on; null without any. */
export function scoreOf({ scores }: Pick<ShownCandidate, 'scores'>): number | null {
  const score = average(scores);
  return Number.isFinite(score) ? score : null;
}

/** Fields read from a candidate's row, once `rowShape` has checked it. */
interface CandidateInfo {
  readonly is_best?: unknown;
  readonly system_prompt?: unknown;
  readonly parent_candidate_idxs?: readonly number[];
  readonly val_subscores?: Readonly<Record<string, unknown>>;
}

/** A limit for indices of validation examples, far above any real number. */
const examplesMax = 1_000_000;

function isCandidate(info: unknown): info is CandidateInfo {
  return asRecord(info)['sample_type'] === 'gepa_candidate';
}

const rowShape: Shape = ({ info }) => {
  if (!isCandidate(info)) return {};
  const { parent_candidate_idxs: parents, val_subscores: scores } = info as Record<string, unknown>;
  const isExample = (key: string): boolean => /^\d+$/.test(key) && Number(key) < examplesMax;
  return {
    '"parent_candidate_idxs", a list of numbers':
      parents === undefined || (Array.isArray(parents) && parents.every((one) => typeof one === 'number')),
    '"val_subscores", a table by the number of the example':
      scores === undefined || (isRecord(scores) && Object.keys(scores).every(isExample)),
  };
};

const metadataShape: Shape = ({ ratchet }) => ({
  '"ratchet.comparison" with "examples", "before" and "after"': isComparison(asRecord(ratchet)['comparison'] ?? null),
});

const trialShape: Shape = (trial) => ({
  '"examples", "before", "after" and "version"': isComparison(trial) && typeof trial['version'] === 'string',
});

function isComparison(value: unknown): boolean {
  if (value === null) return true;
  const { examples, before, after } = asRecord(value);
  const isScore = (score: unknown): boolean => score === null || typeof score === 'number';
  return typeof examples === 'number' && isScore(before) && isScore(after);
}

function asRecord(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}

function textIn(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function numberIn(value: unknown): number | null {
  return typeof value === 'number' ? value : null;
}
