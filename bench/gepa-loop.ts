import type { ExampleRef } from '../core/gepa/prompt-search.ts';
import {
  extractText,
  type ReflectionRecord,
  reflectionTemplate,
  renderReflection,
} from '../core/gepa/reflection-prompt.ts';
import { next, result, settle, startSearch } from '../core/gepa/search.ts';
import type { SearchAnswer, SearchRequest, SearchResult, SearchSettings, Texts } from '../core/gepa/search-state.ts';
import { answerReflection, answerTask, judge, type Task, type World } from './gepa-world.ts';

export interface Found {
  readonly result: SearchResult;
  /** Tasks that the model was given. */
  readonly played: number;
  /** Waits for models one after the other, when all that is asked for is asked at once. */
  readonly rounds: number;
}

/** A search in the simulated world, without servers or workflow. */
export function searchInWorld(world: World, settings: SearchSettings): Found {
  const traces = new Map<string, readonly Played[]>();
  let played = 0;
  const answer = (request: SearchRequest): SearchAnswer => {
    const { id, texts } = request;
    if (request.kind === 'evaluate') {
      const rollouts = playAll(world, texts, request.set, request.examples);
      played += rollouts.length;
      traces.set(id, rollouts);
      return { kind: 'scores', id, scores: rollouts.map(({ score }) => score), paid: rollouts.length };
    }
    const records = request.records.map((at) => recordOf(world, traces.get(at.request)![at.index]!, request.component));
    const message = renderReflection(reflectionTemplate, texts[request.component]!, records);
    return { kind: 'text', id, text: extractText(answerReflection(world.seed, message, request.seed ?? 0)) };
  };
  let state = startSearch(settings, world.start);
  let rounds = 0;
  for (let open = next(state); open.length > 0; open = next(state)) {
    state = settle(state, open.map(answer));
    rounds += 1;
  }
  return { result: result(state), played, rounds };
}

export interface Played {
  readonly task: Task;
  readonly answer: string;
  readonly score: number;
  readonly feedback: readonly string[];
}

export function playAll(
  world: World,
  texts: Texts,
  set: 'train' | 'val' | 'test',
  examples: readonly number[] = [...world[set].keys()],
): Played[] {
  const system = Object.values(texts).join('\n\n');
  return examples.map((example) => {
    const task = world[set][example]!;
    const answer = answerTask(world.seed, system, task.input);
    return { task, answer, ...judge(task, answer, world.rules) };
  });
}

/** Feedback for the reflection model on a rollout, for one component: the rules that it owns. */
export function recordOf(world: World, { task, answer, feedback }: Played, component: string): ReflectionRecord {
  const own = feedback.filter((line) => world.owner[/\[(R\d\d)\]/.exec(line)![1]!] === component);
  return { Inputs: task.input, 'Generated Outputs': answer, Feedback: own.join('\n') || 'Good.' };
}

/** The same world with its examples as a search draws them: what it calls 0 is what was drawn first. */
export function withExamples(
  world: World,
  { train, val }: { readonly train: readonly ExampleRef[]; readonly val: readonly ExampleRef[] },
): World {
  const pick = (tasks: readonly Task[], refs: readonly ExampleRef[]) => refs.map(([, , example]) => tasks[example]!);
  return { ...world, train: pick(world.train, train), val: pick(world.val, val) };
}
