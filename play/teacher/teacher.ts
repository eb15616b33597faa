import { RatchetError } from '../../core/errors.ts';
import type { ChatMessage, ToolSchema } from '../../core/rl/rollout/rollout.ts';
import type { JsonValue, RunSpec, TeacherSpec } from '../../config/run-spec.ts';
import { loadModelFolder } from '../../engine/model/model-folder.ts';
import type { ChatTokenizer } from '../../engine/model/tokenizer/tokenizer.ts';
import {
  type ChatSample,
  type Endpoint,
  hasSameTokenizer,
  type Inference,
  openTeacher,
  type Sample,
  type SampleRequest,
  type TeacherServers,
} from '../../backends/inference/index.ts';
import type { ServedPolicy } from '../../core/rl/run-state.ts';

/** Generates one turn of a rollout in place of the policy, in tokens of the policy's own tokenizer. */
export type Speak = (
  request: SampleRequest,
  turn: { readonly messages: readonly ChatMessage[]; readonly tools: readonly ToolSchema[] | undefined },
) => Promise<Sample>;

export interface TeacherDependencies {
  readonly inference: (spec: RunSpec) => Inference;
  /** Missing = the servers that the config names. */
  readonly teacher?: (spec: TeacherSpec) => TeacherServers;
}

/** Teacher's log probabilities of rows of tokens; the name identifies the weights or server. */
export interface Scorer {
  readonly name: string;
  /** Tokens before each row of the batch; missing = none. */
  readonly before?: readonly (readonly number[])[];
  score(prompts: readonly (readonly number[])[], signal: AbortSignal): Promise<readonly (readonly number[])[]>;
}

/**
 * Opens a teacher that scores: a folder that the run's policy servers hold beside the policy, or servers of its own.
 */
export async function openScorer(dependencies: TeacherDependencies, spec: RunSpec): Promise<Scorer> {
  const { teacher } = spec;
  if (teacher === null) throw new Error('the run has no teacher');
  if (teacher.folder !== null) {
    const policy = await teacherFolder(teacher.folder, 0);
    await requireSameTokenizer(teacher.folder, spec.model);
    const inference = dependencies.inference(spec);
    return {
      name: policy.name,
      score(prompts, signal) {
        if (inference.promptLogprobs) return inference.promptLogprobs({ policy, prompts, signal });
        throw new RatchetError('Unsupported', 'This inference cannot score: name the url of a server in [teacher].');
      },
    };
  }
  const { scorer, name } = (dependencies.teacher ?? openTeacher)(teacher);
  const policy = { name, folder: '', version: nowhere(0, '') };
  return { name, score: (prompts, signal) => scorer.promptLogprobs({ policy, prompts, signal }) };
}

/**
 * Generator of turns when a teacher generates the rollouts; `at` = step of the policy whose turn it would have been.
 */
export async function openSpeaker(
  dependencies: TeacherDependencies,
  spec: RunSpec,
  policy: { readonly tokenizer: ChatTokenizer; readonly folder: string; readonly at: number },
): Promise<Speak> {
  const { teacher } = spec;
  if (teacher === null) throw new Error('the run has no teacher');
  if (teacher.folder === null) {
    const { endpoint } = (dependencies.teacher ?? openTeacher)(teacher);
    return (request, turn) => sayByMessages(endpoint, policy.tokenizer, spec, request, turn);
  }
  const served = await teacherFolder(teacher.folder, policy.at);
  await requireSameTokenizer(teacher.folder, policy.folder);
  const inference = dependencies.inference(spec);
  return (request) => inference.sample({ ...request, policy: served });
}

/** A turn by an API, tokenized with the policy's chat template. It has no log probabilities of the policy's tokens. */
async function sayByMessages(
  endpoint: Pick<Endpoint, 'chat'>,
  tokenizer: ChatTokenizer,
  { sampling: { templateArguments }, teacher }: RunSpec,
  { signal, session, group, seed, ...request }: SampleRequest,
  { messages, tools }: Parameters<Speak>[1],
): Promise<Sample> {
  const said = await endpoint.chat({
    messages,
    tools,
    fields: { ...fieldsOf(request), ...templateFields(teacher), seed },
    signal,
    session,
    group,
  });
  const options = { tools, templateArguments };
  const before = tokenizer.renderChatText(messages, { ...options, addGenerationPrompt: true });
  const whole = tokenizer.renderChatText([...messages, messageOf(said)], { ...options, addGenerationPrompt: false });
  const text = whole.startsWith(before) ? whole.slice(before.length) : said.text;
  const tokenIds = spokenTokens(tokenizer, { before, text }, said.finishReason);
  return { tokenIds, logprobs: null, finishReason: said.finishReason };
}

/** Tokens up to the one that ends the turn: later ones are the template's; a truncated turn has no end token. */
function spokenTokens(
  tokenizer: ChatTokenizer,
  { before, text }: { readonly before: string; readonly text: string },
  ended: Sample['finishReason'],
): number[] {
  const ids = tokenizer.encodeAfter(before, text) ?? tokenizer.encode(text);
  const end = ids.findLastIndex((id) => tokenizer.isSpecial(id));
  if (end < 0) return ids;
  return ids.slice(0, ended === 'length' ? end : end + 1);
}

function messageOf({ text, toolCalls = [] }: ChatSample): ChatMessage {
  const calls = toolCalls.map((call, i) => ({ id: `call_${i}`, type: 'function' as const, function: call }));
  return { role: 'assistant', content: text, ...(calls.length === 0 ? {} : { tool_calls: calls }) };
}

/** Leaves neutral values out: many APIs reject fields that they do not know. */
function fieldsOf(sampling: Omit<SampleRequest, 'seed' | 'signal' | 'session' | 'group'>): Record<string, JsonValue> {
  const { topP = 1, topK = null, minP = 0, stop = [], presencePenalty = 0, frequencyPenalty = 0 } = sampling;
  return {
    max_tokens: sampling.maxTokens,
    temperature: sampling.temperature,
    ...(topP === 1 ? {} : { top_p: topP }),
    ...(topK === null ? {} : { top_k: topK }),
    ...(minP === 0 ? {} : { min_p: minP }),
    ...(stop.length === 0 ? {} : { stop: [...stop] }),
    ...(presencePenalty === 0 ? {} : { presence_penalty: presencePenalty }),
    ...(frequencyPenalty === 0 ? {} : { frequency_penalty: frequencyPenalty }),
  };
}

/** How it thinks, as APIs have it; further variables of a chat template are vLLM's. */
function templateFields(teacher: TeacherSpec | null): Record<string, JsonValue> {
  const { reasoning_effort: effort, ...others } = teacher?.sampling.templateArguments ?? {};
  return {
    ...(effort === undefined ? {} : { reasoning_effort: effort }),
    ...(Object.keys(others).length === 0 ? {} : { chat_template_kwargs: others }),
  };
}

const digests = new Map<string, Promise<string>>();

/** Weights in a folder as a version like any other, named by their digest. */
async function teacherFolder(folder: string, step: number): Promise<ServedPolicy> {
  const known = digests.get(folder) ?? digestOf(folder);
  digests.set(folder, known);
  known.catch(() => digests.delete(folder)); // this caller gets the error; the next one looks again
  const digest = await known;
  return { name: `teacher:weights:${digest.slice(0, 16)}`, folder, version: nowhere(step, digest) };
}

async function digestOf(folder: string): Promise<string> {
  return (await loadModelFolder(folder)).parameters.digest();
}

function nowhere(step: number, digest: string): ServedPolicy['version'] {
  const none = { key: '', sha256: '', bytes: 0 };
  return { step, digest, weights: '', file: none, sums: none };
}

/**
 * Token ids pass between the two models. On a worker without a folder of the policy's, equal tokenizers are assumed.
 */
async function requireSameTokenizer(teacher: string, policy: string): Promise<void> {
  if ((await hasSameTokenizer(teacher, policy)) !== false) return;
  throw new RatchetError(
    'ConfigInvalid',
    `teacher.model: ${teacher} has another tokenizer than the policy, so its tokens mean something else there. A teacher that scores must have the policy’s; one that plays (loss = "sft") may be served (vllm serve, or any OpenAI-compatible server) and named by its url: then its words are read, not its tokens.`,
  );
}
