import {
  extractText,
  type ReflectionRecord,
  reflectionTemplateFor,
  renderReflection,
} from '../../core/gepa/reflection-prompt.ts';
import type { PromptSearchInput } from '../../core/gepa/prompt-search.ts';
import { sharedEndpoint } from '../../backends/inference/index.ts';
import { withinBudget } from '../../core/rl/budget-call.ts';
import { type AroundRollouts, RolloutBudget } from '../budget/rollout-budget.ts';
import type { AskDependencies } from './asked-model.ts';

/** Most tokens of a reflection where a budget counts them and its request bounds them by nothing. */
const tokensMax = 8_192;
/** Tokens that a chat template adds to its prompt. */
const templateTokens = 256;

/** Asks the model that writes prompts anew, within the budgets of its search; `text` is null if it wrote none. */
export async function askReflection(
  { endpoint: open = sharedEndpoint }: Pick<AskDependencies, 'endpoint'>,
  { model, servers, fields }: PromptSearchInput['reflection'],
  asked: {
    readonly component: string;
    /** The present text of the component. */
    readonly text: string;
    readonly told: readonly ReflectionRecord[];
    readonly seed: number | null;
    readonly session: string;
    readonly signal: AbortSignal;
    readonly budgets: AroundRollouts;
  },
) {
  const { component, text: before, told, seed, session, signal, budgets } = asked;
  const content = renderReflection(reflectionTemplateFor(component), before, told);
  const budget = budgets.shared.length > 0 ? new RolloutBudget(undefined, budgets) : undefined;
  const most = typeof fields['max_tokens'] === 'number' ? fields['max_tokens'] : tokensMax;
  const promptTokens = Buffer.byteLength(content) + templateTokens;
  const said = await withinBudget(
    budget,
    { model, promptTokens, maxTokens: most, signal },
    (maxTokens) =>
      open(servers).chat({
        messages: [{ role: 'user', content }],
        fields: { ...fields, ...(budget && { max_tokens: maxTokens }), ...(seed === null ? {} : { seed }) },
        signal,
        session,
      }),
    ({ usage }) => usage ?? { promptTokens, completionTokens: most },
  );
  const text = extractText(said.text);
  return { answer: said.text, text: text === '' ? null : text, usage: said.usage };
}
