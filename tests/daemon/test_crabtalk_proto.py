"""The schema is the reference's, number by number, and the generated code is the schema's."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb

SOURCE = Path(__file__).parents[2] / "src"
PROTO = "everlog/daemon/crabtalk/proto/crabtalk.proto"

CLIENT = """send=1, stream=2, reply_to_ask=3, sessions=4, kill=5, compact=6, list_conversations=7,
list_providers=8, set_provider=9, delete_provider=10, set_active_model=11, list_provider_presets=12,
list_mcps=13, set_local_mcps=14, list_agents=15, get_agent=16, create_agent=17, update_agent=18,
delete_agent=19, install_package=20, uninstall_package=21, list_packages=22, list_skills=23,
start_service=24, stop_service=25, service_logs=26, create_cron=27, delete_cron=28, list_crons=29,
ping=30, get_config=31, reload=32, get_stats=33, subscribe_events=34, set_enabled=35,
list_models=36, search_hub=37, get_conversation_history=38, delete_conversation=39"""

SERVER = """error=1, pong=2, response=3, stream=4, sessions=5, compact=6, conversation_list=7,
provider_list=8, provider_preset_list=9, mcp_list=10, agent_info=11, agent_list=12, hub_event=13,
package_list=14, skill_list=15, service_log_output=16, cron_info=17, cron_list=18, config=19,
stats=20, agent_event=21, model_list=22, hub_package_list=23, conversation_history=24"""

# As the reference writes them; `?`: present or not, `*`: repeated, text unless it says otherwise.
ASKED = "agent=1 content=2 session?=3:u64 sender?=4 cwd?=5 new_chat=6:bool resume_file?=7"
FIELDS = {
    "SendMsg": ASKED,
    "StreamMsg": ASKED,
    "SendResponse": "agent=1 content=2 session=3:u64 provider=4 model=5 usage?=6:TokenUsage",
    "TokenUsage": (
        "prompt_tokens=1:u32 completion_tokens=2:u32 total_tokens=3:u32 cache_hit_tokens?=4:u32 "
        "cache_miss_tokens?=5:u32 reasoning_tokens?=6:u32"
    ),
    "Sessions": "",
    "Ping": "",
    "Pong": "",
    "SessionList": "sessions*=1:SessionInfo",
    "SessionInfo": ("id=1:u64 agent=2 created_by=3 message_count=4:u64 alive_secs=5:u64 active=6:bool title=7"),
    "KillMsg": "session=1:u64",
    "CompactMsg": "session=1:u64",
    "CompactResponse": "summary=1",
    "ListConversationsMsg": "agent=1 sender=2",
    "ConversationList": "conversations*=1:ConversationInfo",
    "ConversationInfo": ("agent=1 sender=2 seq=3:u32 title=4 file_path=5 message_count=6:u64 alive_secs=7:u64 date=8"),
    "GetConversationHistoryMsg": "file_path=1",
    "ConversationHistory": "messages*=1:ConversationMessage title=2 agent=3",
    "ConversationMessage": "role=1 content=2",
    "DeleteConversationMsg": "file_path=1",
    "ReplyToAsk": "session=1:u64 content=2",
    "ErrorMsg": "code=1:u32 message=2",
    "DaemonStats": ("uptime_secs=1:u64 active_sessions=2:u32 registered_agents=3:u32 active_model=4"),
    "AgentEventMsg": "agent=1 session=2:u64 kind=3:AgentEventKind content=4 timestamp=5",
    "StreamEvent": (
        "start=1:StreamStart chunk=2:StreamChunk thinking=3:StreamThinking "
        "tool_start=4:ToolStartEvent tool_result=5:ToolResultEvent "
        "tools_complete=6:ToolsCompleteEvent end=7:StreamEnd ask_user=8:AskUserEvent"
    ),
    "StreamStart": "agent=1 session=2:u64",
    "StreamChunk": "content=1",
    "StreamThinking": "content=1",
    "ToolStartEvent": "calls*=1:ToolCallInfo",
    "ToolCallInfo": "name=1 arguments=2",
    "ToolResultEvent": "call_id=1 output=2 duration_ms=3:u64",
    "ToolsCompleteEvent": "",
    "StreamEnd": "agent=1 error=2 provider=3 model=4 usage?=5:TokenUsage",
    "AskUserEvent": "questions*=1:AskQuestion",
    "AskQuestion": "question=1 header=2 options*=3:AskOption multi_select=4:bool",
    "AskOption": "label=1 description=2",
}
KINDS = {
    FieldDescriptor.TYPE_STRING: "",
    FieldDescriptor.TYPE_BOOL: ":bool",
    FieldDescriptor.TYPE_UINT32: ":u32",
    FieldDescriptor.TYPE_UINT64: ":u64",
}


def _tags(text: str) -> dict[str, int]:
    pairs = (one.strip().split("=") for one in text.split(","))
    return {name: int(number) for name, number in pairs}


def _written(message: Descriptor) -> str:
    """A message's fields as the table above writes them."""
    made = []
    for field in sorted(message.fields, key=lambda one: one.number):
        mark = "*" if field.is_repeated else ""
        own = field.containing_oneof
        if own is not None and own.name == f"_{field.name}":
            mark = "?"
        other = field.message_type or field.enum_type
        kind = f":{other.name}" if other is not None else KINDS[field.type]
        made.append(f"{field.name}{mark}={field.number}{kind}")
    return " ".join(made)


@pytest.mark.parametrize(("message", "text"), [("ClientMessage", CLIENT), ("ServerMessage", SERVER)])
def test_every_message_has_the_tag_of_the_reference(message: str, text: str) -> None:
    described = pb.DESCRIPTOR.message_types_by_name[message]
    found = {field.name: field.number for field in described.fields}
    assert found == _tags(text)
    assert [one.name for one in described.oneofs] == ["msg"]
    assert len(described.oneofs[0].fields) == len(described.fields)


@pytest.mark.parametrize("message", FIELDS)
def test_every_field_has_the_number_and_kind_of_the_reference(message: str) -> None:
    assert _written(pb.DESCRIPTOR.message_types_by_name[message]) == FIELDS[message]


def test_the_package_is_crabtalks() -> None:
    assert pb.DESCRIPTOR.package == "crabtalk.protocol"
    assert pb.ClientMessage(ping=pb.Ping()).SerializeToString() == b"\xf2\x01\x00"  # tag 30, empty


def test_the_generated_code_is_made_from_the_schema(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools makes it anew")
    made = tmp_path / "descriptor"
    problem = protoc.main(["protoc", f"-I{SOURCE}", f"--descriptor_set_out={made}", str(SOURCE / PROTO)])
    assert not problem
    (fresh,) = FileDescriptorSet.FromString(made.read_bytes()).file
    committed = FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    for message in fresh.message_type:
        for field in message.field:
            field.ClearField("json_name")  # protoc writes it here only
    assert committed == fresh
