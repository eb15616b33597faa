import { hash32, randomStream, uniform } from '../core/random.ts';
import { next, result, settle, startSearch } from '../core/gepa/search.ts';
import type { SearchAnswer, SearchRequest, SearchResult, SearchSettings } from '../core/gepa/search-state.ts';

/**
 * Worlds in which only the effect of an edit differs. A prompt is a row of edits. Each edit adds a normal draw to the prompt's strength, and
 * a rollout's reward is 1 with the probability sigmoid(strength − difficulty of the example), else 0. Everything is drawn by key, so a
 * prompt has the same rewards however often it is asked for.
 */
export interface EditWorld {
  readonly seed: number;
  readonly effect: { readonly mean: number; readonly spread: number };
  /** Strength of the first prompt. */
  readonly start: number;
  /** Standard deviation of the examples' difficulty. */
  readonly difficulty: number;
}

/** The worlds that are measured, with the mean gain that 500 calls must bring; the first prompt has a reward of 0.39. */
export const editWorlds = [
  { name: 'mostly harmful', gain: 0.1, effect: { mean: -0.9, spread: 0.8 }, start: -0.5, difficulty: 1 },
  { name: 'neutral', gain: 0.13, effect: { mean: 0, spread: 0.4 }, start: -0.5, difficulty: 1 },
  { name: 'helpful', gain: 0.35, effect: { mean: 0.3, spread: 0.5 }, start: -0.5, difficulty: 1 },
] as const;

export interface EditedSearch {
  readonly result: SearchResult;
  readonly calls: number;
  /** Expected reward of the best prompt less that of the first one, over all examples there could be. */
  readonly gain: number;
}

const start = { system_prompt: 'start' };

/** A search in such a world, by the project's own driver. */
export function searchByEdits(world: EditWorld, settings: SearchSettings): EditedSearch {
  let state = startSearch(settings, start);
  let calls = 0;
  for (let open = next(state); open.length > 0; open = next(state)) {
    state = settle(
      state,
      open.map((request) => answer(world, request)),
    );
    for (const request of open) calls += request.kind === 'evaluate' ? request.examples.length : 0;
  }
  const found = result(state);
  const gain = expectedReward(world, found.texts['system_prompt']!) - expectedReward(world, start.system_prompt);
  return { result: found, calls, gain };
}

function answer(world: EditWorld, request: SearchRequest): SearchAnswer {
  const { id, texts } = request;
  const prompt = texts['system_prompt']!;
  if (request.kind === 'reflect') {
    const seen = request.records.map(({ example, score }) => `${example}:${score}`).join();
    return { kind: 'text', id, text: `${prompt} ${hash32(world.seed, prompt, seen, request.seed ?? 0).toString(36)}` };
  }
  const scores = request.examples.map((example) => {
    const chance = chanceOf(world, prompt, normal(world.seed, 'example', request.set, example));
    return Number(uniform(world.seed, 'reward', prompt, request.set, example) < chance);
  });
  return { kind: 'scores', id, scores, paid: scores.length };
}

/** Mean over the quantiles of the difficulty. */
function expectedReward(world: EditWorld, prompt: string): number {
  const examples = Array.from({ length: 200 }, (_, i) => normal(0, 'quantile', i));
  return examples.reduce((sum, z) => sum + chanceOf(world, prompt, z), 0) / examples.length;
}

function chanceOf(world: EditWorld, prompt: string, z: number): number {
  return 1 / (1 + Math.exp(world.difficulty * z - strengthOf(world, prompt)));
}

function strengthOf({ seed, effect, start: first }: EditWorld, prompt: string): number {
  const edits = prompt.split(' ').slice(1);
  return edits.reduce((sum, edit) => sum + effect.mean + effect.spread * normal(seed, 'effect', edit), first);
}

/** A standard normal draw for a key (Box and Muller). */
function normal(...key: readonly (number | string)[]): number {
  const random = randomStream(...key);
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}
