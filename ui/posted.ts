import type { IncomingMessage } from 'node:http';
import { jsonOrNull } from '../core/json-or-null.ts';
import { type ChatAsked, type Steering, steerings } from './answers.ts';
import { BadRequest } from './routes.ts';

const steeringMax = 4_000;
const chatMax = 200_000;
const messagesMax = 200;
const roles = ['system', 'user', 'assistant'];

/** Reads and validates a request to steer a run. */
export async function steeringIn(request: IncomingMessage): Promise<Steering> {
  const found = jsonOrNull(await bodyOf(request, steeringMax)) as Partial<Steering> | null;
  const what = steerings.find((one) => one === found?.what);
  if (what === undefined || typeof found?.value !== 'string')
    throw new BadRequest(`Expected { what, value } with one of ${steerings.join(', ')}.`);
  return { what, value: found.value };
}

/** Reads and validates a chat message to a version. */
export async function chatIn(request: IncomingMessage): Promise<ChatAsked> {
  const found = jsonOrNull(await bodyOf(request, chatMax)) as Partial<ChatAsked> | null;
  const { step, messages } = found ?? {};
  const areMessages =
    Array.isArray(messages) &&
    messages.length <= messagesMax &&
    messages.every((one: unknown) => {
      const { role, content } = (one ?? {}) as Record<string, unknown>;
      return roles.includes(String(role)) && typeof content === 'string';
    });
  if (typeof step !== 'string' || !/^\d{0,9}$/.test(step) || !areMessages)
    throw new BadRequest('Expected { step, messages } with a step or "", and a role and a content of each message.');
  return { step, messages: messages.map(({ role, content }) => ({ role, content })) };
}

async function bodyOf(request: IncomingMessage, max: number): Promise<string> {
  let text = '';
  for await (const piece of request) {
    text += String(piece);
    if (text.length > max) throw new BadRequest(`Expected at most ${max} characters.`);
  }
  return text;
}
