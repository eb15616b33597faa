import type { JsonValue } from '../../../../core/json-value.ts';
import type { ToolSchema } from '../../../../core/rl/rollout/rollout.ts';
import type { CallConstraints } from '../../types.ts';
import { type Fields, refuse } from './request-fields.ts';

/** Demands of a call on its answer, in the words of OpenAI's chat completions. */

/** A choice of tools, in whichever API's words. */
export interface ToolChoice {
  /** Tools that the model is told of. */
  readonly tools: readonly ToolSchema[];
  /** Set if a call must be made. */
  readonly constraints: CallConstraints;
}

/**
 * `none` and a list of allowed tools are honoured by what the model is told; a call that must be made is a constraint.
 * `choice` is `tool_choice` as it came: OpenAI's two APIs and Anthropic's have one name for one thing each.
 */
export function chosenTools(tools: readonly ToolSchema[], choice: unknown): ToolChoice {
  if (choice == null) return { tools, constraints: {} };
  const given = typeof choice === 'object' ? (choice as Fields) : { type: choice };
  switch (given['type']) {
    case 'auto':
      return { tools, constraints: {} };
    case 'none':
      return { tools: [], constraints: {} };
    case 'required':
    case 'any':
      return { tools: requireSome(tools), constraints: { toolChoice: 'required' } };
    case 'function':
    case 'custom':
    case 'tool':
      return oneTool(tools, given);
    case 'allowed_tools':
      return allowedTools(tools, given);
    default: {
      const got = JSON.stringify(choice).slice(0, 100);
      return refuse(`"tool_choice": expected none, auto, required or one of the tools, got ${got}.`, 'tool_choice');
    }
  }
}

function requireSome(tools: readonly ToolSchema[]): readonly ToolSchema[] {
  if (tools.length > 0) return tools;
  return refuse('"tool_choice" asks for a call, and there are no "tools". Send them, or leave it out.', 'tool_choice');
}

function oneTool(tools: readonly ToolSchema[], given: Fields): ToolChoice {
  const named = nameIn(given);
  if (tools.some(({ function: { name } }) => name === named))
    return { tools, constraints: { toolChoice: { type: 'function', function: { name: named } } } };
  const known = tools.map(({ function: { name } }) => name).join(', ') || 'none';
  return refuse(`"tool_choice": expected the name of one of the tools (${known.slice(0, 300)}), got ${JSON.stringify(named.slice(0, 100))}.`, 'tool_choice'); // prettier-ignore
}

function allowedTools(tools: readonly ToolSchema[], given: Fields): ToolChoice {
  const { mode = 'auto', tools: allowed } = (given['allowed_tools'] ?? given) as Fields;
  if (!Array.isArray(allowed)) return refuse('"tool_choice.tools": expected a list of tools.', 'tool_choice');
  const names = new Set((allowed as Fields[]).map(nameIn));
  const told = tools.filter(({ function: { name } }) => names.has(name));
  return mode === 'required' ? chosenTools(told, 'required') : { tools: told, constraints: {} };
}

function nameIn(given: Fields): string {
  const { name } = (given['function'] ?? given) as Fields;
  return typeof name === 'string' ? name : '';
}

/** `format` is one of OpenAI's chat completions; `param` names it in a refusal. A plain text is no constraint. */
export function answerFormat(format: unknown, param: string): CallConstraints {
  const { type } = (format ?? {}) as Fields;
  if (format == null || type === 'text') return {};
  if (type === 'json_object' || type === 'json_schema') return { responseFormat: format as JsonValue };
  return refuse(`"${param}": expected the type text, json_object or json_schema, got ${JSON.stringify(type)?.slice(0, 100)}.`, param); // prettier-ignore
}

/** The schema of a format that has it beside its type, as responses and Anthropic's messages do. */
export function schemaFormat(format: unknown, param: string): CallConstraints {
  const { type, schema, name = 'answer', ...more } = (format ?? {}) as Fields;
  if (type !== 'json_schema') return answerFormat(format, param);
  return answerFormat({ type, json_schema: { name, schema, ...more } }, param);
}

/** The same for another model, as fields of its request. */
export function constraintFields({ toolChoice, responseFormat }: CallConstraints): Record<string, JsonValue> {
  return {
    ...(toolChoice === undefined ? {} : { tool_choice: toolChoice }),
    ...(responseFormat === undefined ? {} : { response_format: responseFormat }),
  };
}
