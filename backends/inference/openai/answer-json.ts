import { parseWritten, type WrittenJson, writeWritten } from '../../../core/written-json.ts';

/**
 * The JSON of an answer; undefined without any. Also accepts a byte order mark, Python's NaN and ±Infinity, arguments
 * of calls as an object (converted to their written text), and a stream of events in place of one answer.
 */
export function answerJson(text: string): unknown {
  const body = text.replace(/^\s*\uFEFF?/, '');
  const whole = parsedAsPython(body) ?? parsedAsPython(body.replace(/\s*data: ?\[DONE\]\s*$/, ''));
  if (whole !== undefined) return argumentsAsObject.test(body) ? withArgumentsAsWritten(whole, body) : whole;
  return isEvents.test(body) ? joinedEvents(body) : undefined;
}

/** JSON in Python's form: an infinite number stays one, NaN is read as null. Undefined if the text is no JSON. */
export function parsedAsPython(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return pythonNumber.test(text) ? withPythonNumbers(text) : undefined;
  }
}

const pythonNumber = /[:[,]\s*(?:NaN|-?Infinity)\s*[,\]}]/;

/** JSON lacks these numbers. Too large numbers are read as infinite, and NaN as null. */
function withPythonNumbers(text: string): unknown {
  const standard = text.replaceAll(/"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/g, (found) => {
    if (found.startsWith('"')) return found;
    return found === 'NaN' ? 'null' : found.replace('Infinity', '1e999');
  });
  try {
    return JSON.parse(standard) as unknown;
  } catch {
    return undefined;
  }
}

const argumentsAsObject = /"(?:arguments|input)"\s*:\s*\{/;

/** Replaces arguments that are objects by their written texts: JavaScript's numbers and keys differ from JSON's. */
function withArgumentsAsWritten(value: unknown, text: string): unknown {
  const written = parseWritten(text);
  return written === null ? value : valueOf(written);
}

function valueOf(written: WrittenJson): unknown {
  switch (written.kind) {
    case 'object':
      return Object.fromEntries(
        [...written.entries].map(([key, item]) => [
          key,
          (key === 'arguments' || key === 'input') && item.kind === 'object' ? writeWritten(item) : valueOf(item),
        ]),
      );
    case 'array':
      return written.items.map(valueOf);
    case 'text':
      return written.text;
    default:
      return (parsedAsPython(`[${written.word}]`) as unknown[])[0];
  }
}

const isEvents = /^(?:data|event|id|retry)?:/;

type Fields = Readonly<Record<string, unknown>>;

/** One answer from a stream of events: the last whole one in it, or its joined pieces. Only texts are joined. */
function joinedEvents(text: string): unknown {
  const events = text
    .split(/\r\n|\r|\n/)
    .filter((line) => line.startsWith('data:'))
    .map((line) => line.slice('data:'.length).trim())
    .filter((data) => data !== '' && data !== '[DONE]')
    .map((data) => answerJson(data));
  const bodies = events.map(fieldsOf);
  if (events.length === 0 || events.includes(undefined)) return undefined;
  const failed = bodies.find((body) => body['error'] != null);
  if (failed) return failed;
  const firsts = bodies.flatMap((body) => (Array.isArray(body['choices']) ? [fieldsOf(body['choices'][0])] : []));
  if (!firsts.some((choice) => choice['delta'] != null)) return events.at(-1);
  const finish = firsts.map((choice) => choice['finish_reason']).findLast((reason) => reason != null) ?? null;
  if (finish === null && !/^data: ?\[DONE\]/m.test(text)) return undefined; // cut off
  const message = new JoinedMessage();
  for (const choice of firsts.filter((choice) => (choice['index'] ?? 0) === 0)) message.add(fieldsOf(choice['delta']));
  return {
    choices: [
      {
        index: 0,
        finish_reason: finish,
        message: message.joined(),
      },
    ],
    usage: bodies.map((body) => body['usage']).findLast((usage) => usage != null) ?? null,
  };
}

class JoinedMessage {
  readonly #texts = new Map<string, string>();
  readonly #content: unknown[] = [];
  readonly #calls: { id: unknown; name: string; arguments: string }[] = [];

  add(delta: Fields): void {
    for (const key of ['reasoning_content', 'reasoning', 'refusal']) {
      const piece = delta[key];
      if (typeof piece === 'string') this.#texts.set(key, (this.#texts.get(key) ?? '') + piece);
    }
    const { content } = delta;
    if (content != null) this.#content.push(...(Array.isArray(content) ? (content as unknown[]) : [content]));
    const calls = Array.isArray(delta['tool_calls']) ? delta['tool_calls'].map(fieldsOf) : [];
    for (const [i, call] of calls.entries()) this.#addCall(call, i);
  }

  #addCall(call: Fields, position: number): void {
    const { name, arguments: piece } = fieldsOf(call['function']);
    const at = typeof call['index'] === 'number' ? call['index'] : position;
    const known = this.#calls[at] ?? { id: undefined, name: '', arguments: '' };
    this.#calls[at] = {
      id: call['id'] ?? known.id,
      name: known.name + (typeof name === 'string' ? name : ''),
      arguments: known.arguments + (typeof piece === 'string' ? piece : ''),
    };
  }

  joined(): Fields {
    const calls = this.#calls.flat().map(({ id, ...called }) => ({ id, function: called }));
    return {
      ...Object.fromEntries(this.#texts),
      content: this.#content.every((piece) => typeof piece === 'string') ? this.#content.join('') : this.#content,
      ...(calls.length === 0 ? {} : { tool_calls: calls }),
    };
  }
}

function fieldsOf(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {};
}
