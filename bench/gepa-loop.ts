import type { ExampleRef } from '../core/gepa/prompt-search.ts';
import { extractText, reflectionTemplate, renderReflection } from '../core/gepa/reflection-prompt.ts';
import { next, result, settle, startSearch } from '../core/gepa/search.ts';
import type {
  EvaluateRequest,
  ReflectRequest,
  SearchAnswer,
  SearchRequest,
  SearchResult,
  SearchSettings,
  SearchState,
  Texts,
} from '../core/gepa/search-state.ts';
import { answerReflection, answerTask, judge, type Task, type World } from './gepa-world.ts';

interface Played {
  readonly task: Task;
  readonly answer: string;
  readonly score: number;
  readonly feedback: readonly string[];
}

/** A search in the simulated world, without servers or workflow: every request is answered at once, and in its order. */
export function searchInWorld(
  world: World,
  settings: SearchSettings,
): { result: SearchResult; evaluated: number; rounds: number } {
  const traces = new Map<string, readonly Played[]>();
  let evaluated = 0;
  const evaluate = ({ id, texts, set, examples }: EvaluateRequest): SearchAnswer => {
    const played = examples.map((example) => play(world, texts, world[set][example]!));
    evaluated += played.length;
    traces.set(id, played);
    return { kind: 'scores', id, scores: played.map(({ score }) => score), paid: played.length };
  };
  const reflect = ({ id, texts, component, records, seed }: ReflectRequest): SearchAnswer => {
    const told = records.map(({ request, index }) => {
      const { task, answer, feedback } = traces.get(request)![index]!;
      const own = feedback.filter((line) => world.owner[/\[(R\d\d)\]/.exec(line)![1]!] === component);
      return { Inputs: task.input, 'Generated Outputs': answer, Feedback: own.join('\n') || 'Good.' };
    });
    const message = renderReflection(reflectionTemplate, texts[component]!, told);
    return { kind: 'text', id, text: extractText(answerReflection(world.seed, message, seed ?? 0)) };
  };
  const answer = (request: SearchRequest): SearchAnswer =>
    request.kind === 'evaluate' ? evaluate(request) : reflect(request);
  let state: SearchState = startSearch(settings, world.start);
  // Every answer takes as long as any other, so requests are answered in waves: `rounds` of them one after the other.
  let rounds = 0;
  for (let open = next(state); open.length > 0; open = next(state)) {
    state = settle(state, open.map(answer));
    rounds += 1;
  }
  return { result: result(state), evaluated, rounds };
}

/** Mean score of a candidate on tasks. */
export function scoreOn(world: World, texts: Texts, tasks: readonly Task[]): number {
  return tasks.reduce((sum, task) => sum + play(world, texts, task).score, 0) / tasks.length;
}

function play(world: World, texts: Texts, task: Task): Played {
  const answer = answerTask(world.seed, Object.values(texts).join('\n\n'), task.input);
  return { task, answer, ...judge(task, answer, world.rules) };
}

/** The same world with its examples as a search draws them: what it calls 0 is what was drawn first. */
export function withExamples(
  world: World,
  { train, val }: { readonly train: readonly ExampleRef[]; readonly val: readonly ExampleRef[] },
): World {
  const pick = (tasks: readonly Task[], refs: readonly ExampleRef[]) => refs.map(([, , example]) => tasks[example]!);
  return { ...world, train: pick(world.train, train), val: pick(world.val, val) };
}
