import type { RolloutRow } from '../rl/rollout/rollout.ts';
import type { JsonValue } from '../json-value.ts';
import { average } from './fronts.ts';
import type { HeldOutScores, PromptSearchInput } from './prompt-search.ts';
import { systemPrompt } from './prompt-parts.ts';
import type { Candidate, Texts } from './search-state.ts';
import { unifiedDiff } from './text-diff.ts';

/** verifiers' name for the format of these files. */
const gepaSchemaVersion = 'verifiers.gepa.v1';

/** A candidate with its text, from its row. */
export interface ToldCandidate extends Pick<Candidate, 'parents' | 'scores' | 'callsBefore'> {
  /** All of its texts; several parts each under its name. */
  readonly prompt: string;
  readonly texts: Texts;
  readonly sha256: string;
}

const common = {
  schema_version: gepaSchemaVersion,
  eval_kind: 'gepa',
  optimization_target: systemPrompt,
} as const;

/** `results.jsonl` as verifiers 0.3.1 writes it (`gepa_utils._build_candidate_records`): a row for each candidate. */
export function candidateRows(candidates: readonly ToldCandidate[], best: number): RolloutRow[] {
  const [start] = candidates;
  return candidates.map(({ prompt, texts, sha256, parents, scores, callsBefore }, i) => {
    const score = average(scores);
    const scored = Object.fromEntries(scores.flatMap((one, row) => (one === null ? [] : [[String(row), one]])));
    const { eval_kind, optimization_target } = common;
    return {
      example_id: i,
      reward: Number.isFinite(score) ? score : 0,
      score: Number.isFinite(score) ? score : null,
      info: {
        schema_version: gepaSchemaVersion,
        eval_kind,
        sample_type: 'gepa_candidate',
        optimization_target,
        candidate_idx: i,
        is_best: i === best,
        system_prompt: prompt,
        ...(Object.keys(texts).length === 1 ? {} : { components: { ...texts } }),
        system_prompt_sha256: sha256,
        diff_from_initial: unifiedDiff(start!.prompt, prompt, {
          from: 'initial/system_prompt.txt',
          to: 'candidate/system_prompt.txt',
        }),
        parent_candidate_idxs: [...parents],
        val_subscores: scored,
        num_val_examples: Object.keys(scored).length,
        discovery_metric_calls: callsBefore,
      },
    };
  });
}

/** `pareto_frontier.jsonl`: the best candidates of each validation example, in the words of both its forms. */
export function frontierRows(candidates: readonly ToldCandidate[]): RolloutRow[] {
  const examples = candidates[0]?.scores.length ?? 0;
  return Array.from({ length: examples }, (_, row) => row).flatMap((row): RolloutRow[] => {
    const scored = candidates.flatMap(({ scores }, i) => (scores[row] == null ? [] : [[i, scores[row]] as const]));
    if (scored.length === 0) return [];
    const best = Math.max(...scored.map(([, score]) => score));
    const holders = scored.filter(([, score]) => score === best);
    return [
      {
        schema_version: gepaSchemaVersion,
        valset_row: row,
        best_score: best,
        num_best_candidates: holders.length,
        best_candidates: holders.map(([i, score]) => ({
          candidate_idx: i,
          system_prompt_sha256: candidates[i]!.sha256,
          score,
        })),
        num_best_prompts: holders.length,
        best_prompts: holders.map(([i, score]) => ({ candidate_idx: i, system_prompt: candidates[i]!.prompt, score })),
      },
    ];
  });
}

interface GepaMetadataOf {
  readonly input: PromptSearchInput;
  readonly candidates: readonly ToldCandidate[];
  readonly best: number;
  readonly calls: number;
  readonly reflections: number;
  /** null before the end. */
  readonly stopReason: string | null;
  readonly comparison: HeldOutScores | null;
  readonly seconds: number;
  readonly completedAt: string;
}

/** `metadata.json`: verifiers' own fields, and this search's additions below `ratchet`. */
export function gepaMetadata(of: GepaMetadataOf): RolloutRow {
  const { input, candidates, best, comparison } = of;
  const { environments, model, reflection } = input;
  const ids = environments.map(({ id, name, python }) => (python?.module === undefined ? name : id));
  const score = average(candidates[best]?.scores ?? []);
  return {
    ...common,
    framework: 'verifiers',
    optimizer: 'gepa',
    env_id: ids.length === 1 ? ids[0]! : ids.join('+'),
    model: model.model,
    reflection_model: reflection.model,
    num_candidates: candidates.length,
    best_idx: best,
    best_score: Number.isFinite(score) ? score : null,
    total_metric_calls: of.calls,
    initial_prompt_sha256: candidates[0]?.sha256 ?? null,
    best_prompt_sha256: candidates[best]?.sha256 ?? null,
    system_prompt_path: 'system_prompt.txt',
    results_path: 'results.jsonl',
    completed_at: of.completedAt,
    config: {
      env_id: ids[0]!,
      envs: environments.map(({ name, args }, i) => ({ env_id: ids[i]!, name, env_args: args as JsonValue })),
      env_args: (environments.length === 1 ? environments[0]!.args : {}) as JsonValue,
      model: model.model,
      reflection_model: reflection.model,
      num_train: input.numTrain,
      num_val: input.numVal,
      max_metric_calls: input.maxCalls,
      minibatch_size: input.minibatchSize,
      perfect_score: input.perfectScore,
      state_columns: [...input.stateColumns],
      ...(input.components === undefined ? {} : { components: [...input.components] }),
      seed: input.seed,
    },
    ratchet: {
      stop_reason: of.stopReason,
      reflection_calls: of.reflections,
      classic: input.isClassic,
      seconds: of.seconds,
      comparison: comparison === null ? null : { ...comparison },
    },
  };
}

/** Genealogy: candidates below their first parent, two spaces deeper each. */
export function candidateTree(
  candidates: readonly { readonly parents: readonly number[]; readonly scores: readonly (number | null)[] }[],
  best: number,
): { readonly candidate: number; readonly depth: number; readonly line: string }[] {
  const children = (parent: number | undefined): number[] =>
    candidates.flatMap(({ parents }, i) => (parents[0] === parent ? [i] : []));
  const walk = (candidate: number, depth: number): { candidate: number; depth: number; line: string }[] => {
    const { parents, scores } = candidates[candidate]!;
    const there = scores.filter((score) => score !== null);
    const on = there.length === scores.length ? '' : ` on ${there.length} of ${scores.length}`;
    const score = there.length === 0 ? 'not scored' : average(there).toFixed(3);
    const merged = parents.length < 2 ? '' : `  merged with ${parents.slice(1).join(', ')}`;
    const line = `${'  '.repeat(depth)}${candidate}  ${score}${on}${merged}${candidate === best ? '  ← best' : ''}`;
    return [{ candidate, depth, line }, ...children(candidate).flatMap((child) => walk(child, depth + 1))];
  };
  return children(undefined).flatMap((root) => walk(root, 0));
}

/** The tree for people, each candidate with how it differs from its parent. */
export function treeDocument(candidates: readonly ToldCandidate[], best: number): string {
  const tree = candidateTree(candidates, best);
  const details = tree.map(({ candidate }) => {
    const { parents, prompt } = candidates[candidate]!;
    const [parent] = parents;
    const title = `## Candidate ${candidate}${parent === undefined ? ', the start' : ` from ${parents.join(' and ')}`}`;
    if (parent === undefined) return `${title}\n\n${fenced(prompt, '')}`;
    const diff = unifiedDiff(candidates[parent]!.prompt, prompt, {
      from: `candidate ${parent}`,
      to: `candidate ${candidate}`,
    });
    return `${title}\n\n${diff === '' ? 'The same text.' : fenced(diff.trimEnd(), 'diff')}`;
  });
  return [`# Candidates\n\n${fenced(tree.map(({ line }) => line).join('\n'), '')}`, ...details].join('\n\n') + '\n';
}

function fenced(text: string, language: string): string {
  // Not spread into Math.max: a text may have more runs than a call may have arguments.
  const longest = [...text.matchAll(/`{3,}/g)].reduce((length, [run]) => Math.max(length, run.length + 1), 3);
  const fence = '`'.repeat(longest);
  return `${fence}${language}\n${text}\n${fence}`;
}
