import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import type { RunSpec, TeacherSpec } from '../../../config/run-spec.ts';
import { chatCall } from './endpoint.ts';
import { serverKeysOf, ModelServer } from '../model-server.ts';
import { type NamedServer, teacherServers } from './teacher.ts';
import { hasSameTokenizer, policyTokens } from './teacher-tokens.ts';
import { turnIn } from './chat-answer.ts';
import { promptLogprobsIn } from './openai-bodies.ts';

/** Findings about a run's teacher, before the run uses it. null = unknown, or not asked. */
export interface TeacherReport {
  readonly role: TeacherSpec['role'];
  /** A folder of weights in the run's own policy servers; then there is no server to ask. */
  readonly isFolder: boolean;
  /** The folder, or the server's root. */
  readonly where: string;
  /** The server's name for it; '' for a folder. */
  readonly model: string;
  /** The variable with its key, if unset here: then it is not asked. */
  readonly missingKey: string | null;
  /** Why it could not be asked; null if it answered, or was not asked. */
  readonly away: string | null;
  readonly hasModel: boolean | null;
  /** Whether it serves its purpose: scores a prompt of token ids, or answers a message. */
  readonly serves: boolean | null;
  /** Whether token ids have the same meaning there as for the policy. */
  readonly hasSameTokens: boolean | null;
  /** The reason, in the server's words if it gave any. */
  readonly why: string | null;
}

type Answered = Pick<TeacherReport, 'serves' | 'hasSameTokens' | 'why'>;

/** A person is waiting. */
const askMs = 5_000;
/** Timeout for one token: a server's first request compiles, which took 15 s in vLLM on a CPU. */
const answerMs = 30_000;

const nothing = { missingKey: null, away: null, hasModel: null, serves: null, hasSameTokens: null, why: null };

/** Asks each of a teacher's servers for its models, and for one token, as the run will. */
export async function examineTeacher({
  teacher,
  model,
}: Pick<RunSpec, 'teacher' | 'model'>): Promise<readonly TeacherReport[]> {
  if (teacher === null) return [];
  if (teacher.folder !== null) return [await examineFolder(teacher.role, teacher.folder, model)];
  return Promise.all(teacherServers(teacher).map((server) => examineOne(teacher, server, model)));
}

async function examineFolder(role: TeacherReport['role'], folder: string, policy: string): Promise<TeacherReport> {
  const hasSameTokens = await hasSameTokenizer(folder, policy);
  const why = hasSameTokens === null ? 'its tokenizer.json or the policy’s is not here' : null;
  return { ...nothing, role, isFolder: true, where: folder, model: '', hasSameTokens, why };
}

async function examineOne(teacher: TeacherSpec, address: NamedServer, policy: string): Promise<TeacherReport> {
  const remedy = 'Is the teacher running, and is that its address?';
  const server = new ModelServer(address, { timeoutMs: askMs, provider: 'cpu', remedy });
  const { model } = address;
  const about = { ...nothing, role: teacher.role, isFolder: false, where: server.root, model };
  const missingKey = serverKeysOf(address).find((name) => (process.env[name] ?? '') === '');
  if (missingKey !== undefined) return { ...about, missingKey };
  try {
    await server.look();
    const hasModel = await lists(server, model);
    const asked = teacher.role === 'samples' ? await say(server, teacher) : await score(server, model, policy);
    return { ...about, hasModel, ...asked };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    return { ...about, away: error.message };
  } finally {
    server.close();
  }
}

const Models = z.object({ data: z.array(z.object({ id: z.string() })) });

async function lists(server: ModelServer, model: string): Promise<boolean | null> {
  const read = Models.safeParse((await server.get('/v1/models')).body);
  return read.success && read.data.data.length > 0 ? read.data.data.some(({ id }) => id === model) : null;
}

/** One token of an answer to a message. */
async function say(server: ModelServer, { sampling: { temperature } }: TeacherSpec): Promise<Answered> {
  const messages = [{ role: 'user' as const, content: 'Say one word.' }];
  const { route, body } = chatCall(server.address, { messages, fields: { max_tokens: 1, temperature } });
  const { error } = await tried(async () => turnIn(await ask(server, route, body), { tokens: 'none' }, server.root));
  return { serves: error === null, hasSameTokens: null, why: error };
}

/** The log probabilities of a few tokens from the whole policy's vocabulary, with the server's names of them. */
async function score(server: ModelServer, model: string, policy: string): Promise<Answered> {
  const tokens = await policyTokens(policy);
  if (tokens === null) {
    const { error } = await scored(server, model, [1, 2, 3]);
    return {
      serves: error === null,
      hasSameTokens: null,
      why: error ?? 'the policy’s tokenizer is not here, or of a kind that is not read here',
    };
  }
  const ids = tokens.map(({ id }) => id);
  const { said, error } = await scored(server, model, ids);
  if (said === null) {
    const low = await scored(server, model, ids.slice(0, 2)); // a smaller vocabulary has at least these
    return { serves: low.said !== null, hasSameTokens: low.said === null ? null : false, why: error };
  }
  const told = tokens.flatMap(({ id, text }, i) => {
    const its = said[i]?.[String(id)]?.decoded_token;
    return its == null || isPartOfCharacter(its) || isPartOfCharacter(text) ? [] : [{ id, text, its }];
  });
  const other = told.find(({ text, its }) => its.trim() !== text.trim());
  if (other) {
    const why = `token ${other.id} is ${JSON.stringify(other.text)} to the policy, and ${JSON.stringify(other.its)} there`;
    return { serves: true, hasSameTokens: false, why };
  }
  if (told.length > 0) return { serves: true, hasSameTokens: true, why: null };
  return { serves: true, hasSameTokens: null, why: 'it does not say what its tokens are (decoded_token)' };
}

/** Servers differ in how they show bytes that are no character by themselves. */
function isPartOfCharacter(text: string): boolean {
  return text === '' || text.includes('\uFFFD');
}

const Named = z.object({
  choices: z.tuple([
    z.object({
      prompt_logprobs: z.array(z.record(z.string(), z.object({ decoded_token: z.string().nullish() })).nullable()),
    }),
  ]),
});

/** The server's scores for each token of a prompt; null if it reports no log probabilities. */
async function scored(server: ModelServer, model: string, prompt: readonly number[]) {
  const { done, error } = await tried(async () => {
    const body = { model, prompt: [prompt], max_tokens: 1, temperature: 1, prompt_logprobs: 0 };
    const answer = await ask(server, '/v1/completions', body);
    promptLogprobsIn(answer, [prompt], server.root);
    return answer;
  });
  const named = Named.safeParse(done);
  return { said: error === null ? (named.success ? named.data.choices[0].prompt_logprobs : []) : null, error };
}

async function ask(server: ModelServer, route: string, body: unknown): Promise<unknown> {
  const answer = await server.send('POST', route, body, { timeoutMs: answerMs });
  if (answer.status >= 300) throw server.refusal(route, answer);
  return answer.json;
}

/** The result, or the server's refusal in its own words; other failures are thrown. */
async function tried<T>(work: () => Promise<T>): Promise<{ readonly done?: T; readonly error: string | null }> {
  try {
    return { done: await work(), error: null };
  } catch (error) {
    if (!(error instanceof RatchetError)) throw error;
    // A server without this route reports a missing model.
    if (error.isRetryable && error.code !== 'VersionNotHeld') throw error;
    return { error: error.message };
  }
}
