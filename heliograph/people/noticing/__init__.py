"""How people are told what needs their eye: `choices` is what each chose, `telling` puts mails and events in.

The rules nobody may break: nobody is told of what their role does not see, and what was put in is put in once.
"""
